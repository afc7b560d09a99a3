"""Evidence: what a run writes down, and how it is read back."""

from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest

__all__ = ["Evidence", "digest"]
