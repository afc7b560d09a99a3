"""Answers kept sample by sample: the bits are the counts, in every engine, and only where they are asked for."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import coterie as ct
from coterie.analysis.record_reader import read_records
from coterie.core.asks import Evaluate
from coterie.core.serving import Serving
from coterie.engines.batched import make_engine
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from coterie.evidence.folder import MemorySource
from coterie.evidence.tables import ANSWERS
from coterie.run.execution import Execution

DATA = "digits/dirichlet(0.5,clients=7)"


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_bits_are_the_counts(engine: str) -> None:
    world = World.from_spec(ct.load(DATA), "mclr")
    federation, rng = world.federation, np.random.default_rng(0)
    models = rng.normal(size=(3, world.model.layout.size)).astype(np.float32)
    clients = np.array([2, 0, 3, 6, 5])
    ask = Evaluate(Serving(clients, models, np.array([0, 0, 0, 1, 0])), answers=True)
    with make_engine({0: world}, engine, "cpu", 1) as made:
        found, plain = (made.run([StampedAsk(one, 0, 0)])[0] for one in (ask, replace(ask, answers=False)))
        alone = [made.run([StampedAsk(ask.take(np.array([row])), 0, 0)])[0] for row in range(len(clients))]
    assert plain.answers is None
    bits = np.unpackbits(found.answers, axis=1).astype(bool)
    assert bits.any()
    for row, client in enumerate(found.clients):
        samples = federation.test[int(client)]
        own = bits[row, : len(samples)]
        assert not bits[row, len(samples) :].any()
        by_class = np.bincount(federation.y[samples][own], minlength=len(federation.classes))
        assert by_class.tolist() == found.hits[row].tolist()
        assert own.tolist() == np.unpackbits(alone[row].answers[0])[: len(samples)].astype(bool).tolist()  # whoever is asked beside it


def test_a_study_keeps_those_of_its_last_round_and_the_digest_does_not_see_them() -> None:
    result = ct.study(["fedavg", "local"], data=DATA, rounds=2, execution=Execution(engine="loop"))
    assert isinstance(result.evidence.source, MemorySource)
    table = pa.concat_tables(result.evidence.source.tables["clients"])  # as it was written: what readers leave out costs space too
    kept = np.array([row is not None for row in table[ANSWERS].to_pylist()])
    assert kept.tolist() == (table["round"].to_numpy() == 2).tolist()
    assert read_records(result.evidence).answered.all()  # type: ignore[union-attr]
    settings = result.evidence.settings
    grown = replace(result.evidence, settings=replace(settings, plan=replace(settings.plan, rounds=3)))
    assert read_records(grown).answers is None  # a study that goes on to round 3: these were of models that are no longer the last
    assert ANSWERS not in result.clients.columns
    assert ANSWERS not in result.evidence.frame("clients").columns
