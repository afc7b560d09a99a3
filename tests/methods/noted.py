"""What tests read from a round's notes."""

from coterie.core.method import Context
from coterie.core.mixing import Mixing


def mixing_of(ctx: Context) -> Mixing:
    """The matrix that the round noted."""
    assert ctx.notes.mixing is not None
    return ctx.notes.mixing


def clusters_of(ctx: Context) -> list[int]:
    """The labels of the groups that live for this round only, in the order of the clients that trained."""
    assert ctx.notes.clusters is not None
    return ctx.notes.clusters[1].tolist()  # type: ignore[no-any-return]
