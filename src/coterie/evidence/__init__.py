"""Evidence: what a run writes down, and how it is read back."""

from coterie.evidence.digest import digest
from coterie.evidence.reader import Evidence

__all__ = ["Evidence", "digest"]
