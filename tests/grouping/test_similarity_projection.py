"""Random projections: distances stay, and what is kept of a projection changes no number."""

import numpy as np
import pytest

from coterie.core.asks import Gradients
from coterie.core.method import Context, Round
from coterie.core.plan import Plan
from coterie.core.rng import make_generator
from coterie.core.vectors import BLOCK
from coterie.data.catalogue import load
from coterie.engines.batched import make_engine
from coterie.engines.world import World
from coterie.grouping import similarity
from coterie.grouping.similarity import RandomProjection, compute_distances, compute_gram, project_randomly
from coterie.grouping.structure_views import SKETCH, WIDE, Probes
from coterie.methods.client_probes import ask_probes
from coterie.run.driver import run_script


def test_sketches_keep_distances() -> None:
    x = np.random.default_rng(3).normal(size=(6, 2 * BLOCK + 3)).astype(np.float32)
    whole = compute_distances(compute_gram(x))[np.triu_indices(6, 1)]
    points = project_randomly(x, 400, np.random.default_rng(0))
    assert points.shape == (6, 400)
    kept = compute_distances(points @ points.T)[np.triu_indices(6, 1)]
    assert np.max(np.abs(kept / whole - 1)) < 0.2
    assert np.array_equal(points, project_randomly(x, 400, np.random.default_rng(0)))
    assert not np.array_equal(points, project_randomly(x, 400, np.random.default_rng(1)))


@pytest.mark.parametrize("held", [0, 7 * BLOCK, 1 << 26], ids=["nothing", "a part", "everything"])
def test_what_is_kept_of_a_projection_changes_no_bit(held: int) -> None:
    rng = np.random.default_rng(5)
    rows, others = rng.normal(size=(2, 3, 2 * BLOCK + 17)).astype(np.float32)
    kept = RandomProjection(rows.shape[1], 7, np.random.default_rng(1), held)
    for vectors in (rows, others, rows):
        assert np.array_equal(kept(vectors), project_randomly(vectors, 7, np.random.default_rng(1)))
    assert np.array_equal(kept(rows, others[0]), project_randomly(rows, 7, np.random.default_rng(1), others[0]))


def test_probes_are_as_before_and_their_projection_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old rule: every reply by itself, with a projection of its own, drawn from the same keys."""
    drawn: list[int] = []

    def counted(key: int) -> np.random.Generator:
        drawn.append(key)
        return make_generator(key)

    monkeypatch.setattr(similarity, "make_generator", counted)
    world = World.from_spec(load("digits/rotated(clients=6,groups=2)"), "mlp(64)")
    problem = world.problem
    ctx = Context(problem.roster_at(0), problem.layout, Plan(), 0, 0)
    width = int(ctx.layout.compared.sum())
    assert WIDE < width <= 2 * BLOCK
    replies: list[Gradients] = []

    def heard(script: Round[Probes]) -> Round[Probes]:
        """The script, with every reply written down."""
        reply = None
        while True:
            try:
                ask = script.send(reply)
            except StopIteration as end:
                made: Probes = end.value
                return made
            reply = yield from ask
            replies.append(reply)

    with make_engine(world, "loop", "cpu", 1) as engine:
        found = run_script(heard(ask_probes(problem.initial(0)(), ctx.roster.available, 10, ctx)), engine)
    assert len(replies) == 20
    assert len(drawn) == -(-width // BLOCK)  # once for all questions
    for place, reply in enumerate(replies):
        vectors = project_randomly(ctx.layout.comparable(reply.vectors), SKETCH, ctx.rng("inspect sketch"))
        rows = np.searchsorted(found.clients, reply.clients)
        assert np.array_equal(found.vectors[place // 10, rows, place % 10], vectors)
