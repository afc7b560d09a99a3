"""PACFL: one hierarchical clustering of the angles between subspaces of clients' samples, then averaging in each cluster.

Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles Between Client Data
Subspaces" (AAAI 2023). Clients send the first left singular vectors of the samples of each class; nothing of the model is compared. What
is sent looks like the samples: sites answer only where their policy names `AskSubspaces`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids, find_positions
from coterie.core.asks import Trained
from coterie.core.descriptions import AskSubspaces
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.grouping.clustering import Linkage, agglomerative_clustering
from coterie.grouping.landmarks import MANY, sample_landmarks
from coterie.methods.flhc import FLHC
from coterie.methods.grouped import OneShotState, note_landmarks

Angle = Literal["smallest", "sum"]
RIGHT_ANGLE = 90.0  # degrees: what an absent direction counts


@dataclass(frozen=True, kw_only=True)
class PACFL(FLHC):
    """Clusters of all clients by the angles between the main directions of their samples; then FedAvg in each cluster.

    Example: ``ct.PACFL(groups=4)``, or the spec ``pacfl(threshold=4.9)``.
    """

    warmup: int = setting(0, "Rounds of FedAvg before the clustering.", minimum=0)
    linkage: Linkage = setting("average", "How the distance of two clusters is counted.")
    directions: int = setting(3, "Singular vectors of the samples of each class.", minimum=1, maximum=10)
    by_class: bool = setting(True, "Whether each class has its own directions; otherwise those of all samples.")
    angle: Angle = setting("smallest", "The distance in degrees: the smallest angle of any two directions, or the sum over equal places.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups == "auto" and self.threshold is None and self.choice not in ("structure", "trial"):
            raise UserError("PACFL has angles, no points to read a number of groups from: use choice=structure, groups=4 or threshold=5.")

    def labels(self, state: OneShotState, trained: Trained, ctx: Context) -> Round[Ids]:
        count = None
        if self.threshold is None:
            count = yield from self.ask_number(self.groups, state.models, lambda i=0: state.models[0], ctx)
        classes = ctx.outputs if self.by_class and ctx.task.counts_classes else 0
        found = yield from AskSubspaces(trained.clients, size=ctx.features, directions=self.directions, classes=classes)
        labels = np.zeros(len(trained), dtype=np.int64)
        if not len(found):
            return labels
        rows = find_positions(trained.clients, found.clients)
        labels[rows] = self._cut_tree(found.bases, count, ctx)
        silent = np.setdiff1d(np.arange(len(trained)), rows)
        labels[silent] = np.bincount(labels[rows]).argmax()  # of a client that sends no directions nothing is known: the largest group
        return labels

    def _cut_tree(self, bases: Floats, groups: int | None, ctx: Context) -> Ids:
        """(n,) the cluster of each client: of many, those of landmarks, and of the others that of the smallest mean angle."""
        some = np.arange(len(bases))
        if len(bases) > MANY:
            note_landmarks(ctx)
            some = sample_landmarks(len(bases), ctx.rng("groups"))
        angles = compute_angles(bases, bases[some], self.angle)
        own = agglomerative_clustering(angles[some], groups=groups, threshold=self.threshold, linkage=self.linkage)
        means = np.stack([angles[:, own == j].mean(axis=1) for j in range(int(own.max()) + 1)], axis=1)
        labels = means.argmin(axis=1)
        labels[some] = own
        return np.asarray(labels, dtype=np.int64)


def compute_angles(bases: Floats, others: Floats, angle: Angle) -> Doubles:
    """(n, m) degrees between clients' directions (n, C, p, f) and (m, C, p, f), as the setting names them.

    A vector and its opposite are one direction. The angle of a client to itself is zero.
    """
    n, m = len(bases), len(others)
    places = bases.shape[1] * bases.shape[2]
    left, right = (np.asarray(each).reshape(len(each), places, -1) for each in (bases, others))
    found = np.empty((n, m))
    for i in range(n):
        if angle == "smallest":
            present = left[i][left[i].any(axis=1)]  # most clients have few of many classes
            cosines = np.abs(present @ right.reshape(m * places, -1).T).max(axis=0, initial=0.0)
            found[i] = _to_degrees(cosines.reshape(m, places).max(axis=1))
        else:
            absent = ~left[i].any(axis=1) & ~right.any(axis=2)  # (m, places) of neither client: no difference
            found[i] = np.where(absent, 0.0, _to_degrees(np.abs(np.einsum("pf,mpf->mp", left[i], right)))).sum(axis=1)
    return found


def _to_degrees(cosines: Floats) -> Doubles:
    """Angles; directions are sent in single precision, and what that rounds is no angle."""
    return np.asarray(np.where(cosines > 1 - 1e-6, 0.0, np.degrees(np.arccos(np.minimum(cosines, 1.0, dtype=np.float64)))))
