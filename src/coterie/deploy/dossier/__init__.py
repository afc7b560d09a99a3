"""The dossier: model card, egress records and method statement, from evidence and logs alone."""
