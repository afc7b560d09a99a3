"""How different the clients are, before any training: indices, and for each what must leave the client to compute it."""

from coterie.heterogeneity.indices import INDICES, Index, Leaves, from_counts, from_updates
from coterie.heterogeneity.pni import Pni, ask_pni, pni, pni_normalised

__all__ = ["INDICES", "Index", "Leaves", "Pni", "ask_pni", "from_counts", "from_updates", "pni", "pni_normalised"]
