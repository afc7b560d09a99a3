"""How many groups? From points that clients sent, from a test of structure, and (in `methods.trial`) from a short trial."""

from typing import Literal

How = Literal["structure", "trial", "gap", "stability", "silhouette"]
