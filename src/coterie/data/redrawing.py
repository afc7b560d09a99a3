"""What another draw of the data changes, and what it leaves as it is: the difference between another split and other patients."""

from typing import Literal

from coterie._util.errors import UserError
from coterie.core.specs import parse_path
from coterie.data.content import contents
from coterie.data.federation import Federation

# everything: new samples; partition: the samples are dealt out among clients anew; split: every client's samples into its parts
Redrawn = Literal["everything", "partition", "split"]
LASTING = ("natural", "arrivals")  # steps of a spec after which a client holds what its name says


def what_is_redrawn(spec: str) -> Redrawn:
    """What a draw of these data draws. A federation that no spec names is taken for a partition: of its clients nothing is presumed."""
    try:
        first, *rest = parse_path(spec)
    except UserError:
        return "partition"
    if first.name in ("synthetic", "linear"):
        return "everything"
    return "split" if all(step.name in LASTING for step in rest) else "partition"


def same_data(one: Federation, other: Federation) -> bool:
    """Whether two draws are the same data: then there is nothing to be drawn, as where a set brings its own split."""
    return contents(one) == contents(other)


def sharing(one: Federation, other: Federation) -> Federation:
    """The other federation with the arrays of the first where they are the same: ten draws of a partition need one copy of the samples."""
    same = one.x.shape == other.x.shape and one.x.dtype == other.x.dtype and bool((one.x == other.x).all())
    return other.with_(x=one.x) if same else other
