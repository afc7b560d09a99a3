"""How many groups? Read from points (`points`), by a test of structure (`structure`), and by a short trial (`methods.trial`).

A new way has a name in `How`: one that reads points is a case of `points.from_points`, one that asks clients a case of
`methods.number.ChoosesGroups`.
"""

from typing import Literal

How = Literal["structure", "trial", "gap", "stability", "silhouette"]
