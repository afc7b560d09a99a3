"""From the evidence of studies to every number and sentence that is shown: scores, groups, roles, findings, verdicts."""
