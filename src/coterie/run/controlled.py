"""Which controls a comparison adds to its methods."""

from collections.abc import Sequence
from typing import Any

from coterie.analysis.roles import assigned, variant
from coterie.core.method import Method
from coterie.grouping.controls import Assign
from coterie.methods.catalogue import spec_of
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.run.tuning import Labelled


def with_controls(entries: Sequence[Labelled], known_groups: bool, finetune: int, *, sizes_differ: bool = True) -> list[Labelled]:
    """The methods with what tells a gain from similarity apart: baselines first, then each method followed by its own controls.

    A method that groups gets random groups of the same sizes; where clients differ in size, random groups among clients of like size,
    which keep the weights; and, where the true groups are known, those. What is there already is not added again.
    """
    baselines: list[Method[Any]] = [FedAvg(), FedAvg(weighting="uniform"), LocalOnly(), FineTuned(method=FedAvg(), epochs=finetune)]
    wanted: list[Labelled] = [(spec_of(method), method) for method in baselines]
    for label, method in entries:
        wanted.append((label, method))
        if assigned(method) == "similar":
            there: dict[Assign, bool] = {"random": True, "matched": sizes_differ, "oracle": known_groups}
            ways = [way for way, known in there.items() if known]
            wanted += [(spec_of(control), control) for control in (variant(method, way) for way in ways)]
    own = {method: label for label, method in entries}  # a user's spelling wins
    return [(own.get(method, label), method) for method, label in {method: label for label, method in wanted}.items()]
