"""What two-class answers miss and what they alarm, in a sentence: for a hospital, that is the decision."""

from math import isnan

from coterie.analysis.findings import Finding
from coterie.report.subject import Subject


def two_class_words(subject: Subject, finding: Finding) -> list[str]:
    """Sensitivity, false alarms and AUC beside the baseline's; nothing for other tasks."""
    found = subject.two_classes
    if finding.label not in found:
        return []
    own, base = found[finding.label], found[subject.findings.roles.baseline]
    if isnan(own.sensitivity.mean + own.specificity.mean):  # nobody has one of the classes, or no run reached the end
        return []
    name = subject.baseline.name
    other, told = subject.findings.records.evidence.class_names
    tells = f"Of 100 samples of class {told!r} it recognises {100 * own.sensitivity.mean:.0f} ({name} {100 * base.sensitivity.mean:.0f})"
    alarms = f"of 100 of {other!r} it takes {100 - 100 * own.specificity.mean:.0f} for {told!r} ({100 - 100 * base.specificity.mean:.0f})"
    area = f"; AUC {100 * own.auroc.mean:.1f} against {100 * base.auroc.mean:.1f}" if not isnan(own.auroc.mean) else ""
    return [f"{tells}; {alarms}{area}."]
