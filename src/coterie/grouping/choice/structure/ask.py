"""The number of groups from a test of structure: clients are asked for gradients on two halves of their data, and groups are claimed only
where they are more distinct than one population of the same spread would show. It can answer one."""

from coterie.core.arrays import Floats
from coterie.core.method import Context, Round
from coterie.core.notes import Choice
from coterie.core.sketches import Sketch
from coterie.grouping.choice.structure.distinct import TESTED, groups_of
from coterie.grouping.choice.structure.probes import enough, probe


def from_structure(model: Floats, ctx: Context, most: int, sketch: Sketch | None = None) -> Round[Choice]:
    """How many groups, from 1 to `most`: one where no distinct groups are claimed. Label counts leave the clients asked, where samples
    have one class each; otherwise halves are asked as a whole."""
    clients = ctx.sample(ctx.roster.available, TESTED, "structure clients")
    probes = yield from probe(model, clients, ctx.outputs, ctx, labels=ctx.task.counts_classes, sketch=sketch)
    if not enough(probes):
        return Choice(1, "structure", p=float("nan"))
    found = groups_of(probes, ctx.rng("structure"), most=most)
    curves = {name: (float("nan"), *map(float, values)) for name, values in (("share", found.share), ("expected", found.expected))}
    return Choice(found.number, "structure", curves, found.p)
