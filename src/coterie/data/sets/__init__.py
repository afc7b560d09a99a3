"""Data sets that need files: one loader for all (`coterie.data.dataset`), a file for each family of sets here."""
