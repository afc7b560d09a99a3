"""What leaves the device in a round: the new models, counts, norms and small matrices; never what clients sent.

The device is the CPU, and every way off it is counted: `fetched`, which is for models, and `read_off`, which is for few numbers.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from coterie.core.asks import Evaluate
from coterie.core.serving import Serving
from coterie.core.states import flatten
from coterie.engines import device_vectors
from coterie.engines.batched import BatchedEngine
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.records import RUNNING
from coterie.methods.catalogue import build
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes
from coterie.testing import play, worlds

ROUNDS = 3
# methods that keep nothing of single clients, all of whom take part; the new models that each makes in a round, at most
MADE = {
    "fedavg": 1,
    "fedavg(weighting=uniform)": 1,
    "fedsgd": 1,
    "fedprox(mu=0.1)": 1,
    "feddist": 1,
    "feddws": 1,
    "feddane(mu=0.1)": 2,  # the mean gradient, too
    "robust(groups=2,trim=0.4)": 4,  # of a group whose ends are cut off, the plain mean, too
    "cfl": 2,
    "hypocluster(groups=3)+restarts(starts=2,trial=2)": 6,
    "fesem(groups=2)": 2,
    "fesem(groups=3)": 3,
    "fesem(groups=4)": 4,
    "fesem(groups=3,assign=random)": 3,
    "fesem_ma(groups=3)": 3,
    "fedsim(clusters=2)": 1,
    "fedavg+finetune(epochs=1)": 1,  # everybody's own model is judged where it is
    "fedgroup(groups=3,pretrain=1)": 8,  # before and after the step between groups; in the cold start the mean updates, too
    "fedgroup(groups=3,pretrain=1,assign=random)": 8,
    "fedgrouprox(groups=3,pretrain=1,mu=0.01)": 8,
    "rcc(groups=3,pretrain=1)": 8,
    "rac(groups=3,pretrain=1)": 8,
    "ifca(groups=3)": 3,
    "fedex(groups=3)": 4,  # while it is warmed up, one for all
    "flhc(groups=3,warmup=1)": 3,
    "fedatt": 1,
    "simagg": 2,  # the mean that tensors are compared with, too
    "simprox": 1,
}


@pytest.fixture(scope="module")
def world() -> World:
    """A network of which a model has more numbers than there are pairs of clients."""
    hidden = 40
    return worlds.make_custom_world(
        worlds.make_federation(),
        lambda: torch.nn.Sequential(torch.nn.Linear(worlds.FEATURES, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3)),
    )


class Leaving:
    """Numbers that left the device: of models, and others."""

    def __init__(self) -> None:
        self.models, self.others = 0, 0

    def fetch_models(self, tensor: torch.Tensor) -> Any:
        self.models += tensor.numel()
        return tensor.numpy()

    def read_off(self, tensor: torch.Tensor) -> Any:
        self.others += tensor.numel()
        return tensor.numpy()


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    found = Leaving()
    monkeypatch.setattr(device_vectors, "FEW", 0)
    monkeypatch.setattr(device_vectors, "fetch_tensor", found.fetch_models)
    monkeypatch.setattr(device_vectors, "fetch_small", found.read_off)
    monkeypatch.setattr(DeviceVectors, "fetch", lambda self: pytest.fail("replies were fetched"))
    return found


@pytest.mark.parametrize("spec", MADE)
def test_a_round_fetches_new_models_and_small_things_only(spec: str, world: World, leaving: Leaving) -> None:
    n, d = len(world.federation), world.model.layout.size
    plan = replace(play.PLAN, cohort=None, evaluate_every=1)  # everybody takes part, and is judged
    with BatchedEngine(world, holds=True) as engine:
        assert play.play(build(spec), engine=engine, world=world, plan=plan, rounds=ROUNDS).states
    assert 0 < leaving.models <= ROUNDS * MADE[spec] * d
    assert leaving.others <= ROUNDS * 8 * (n * n + n)  # a Gram matrix and some lengths, far from n * d
    assert 8 * (n * n + n) < n * d


@pytest.mark.parametrize("spec", MADE)
def test_what_is_made_where_models_are_is_what_the_loop_makes(spec: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_vectors, "FEW", 0)
    with BatchedEngine(world, holds=True) as holding, LoopEngine(world) as loop:
        found, expected = (play.play(build(spec), engine=engine, world=world, rounds=ROUNDS) for engine in (holding, loop))
    for one, other in zip(found.states, expected.states, strict=True):
        arrays, others = flatten(one)[0], flatten(other)[0]
        assert arrays.keys() == others.keys()
        for name in arrays:
            assert_allclose(arrays[name], others[name], rtol=1e-4, atol=1e-5)


def test_methods_with_and_without_linear_terms_train_in_one_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lanes' rows of noughts beside FedDANE's terms were laid down on the host: as large as all trained models."""
    monkeypatch.setattr(device_vectors, "FEW", 0)
    jobs: list[int] = []
    zeros = np.zeros

    def counted(shape: Any, *args: Any, **options: Any) -> Any:
        found = zeros(shape, *args, **options)
        jobs.append(found.size)
        return found

    specs = ("fedavg", "feddane(mu=0.1)", "fesem(groups=2)")
    with BatchedEngine(world, holds=True) as engine:
        lanes = make_lanes([(spec, build(spec)) for spec in specs], [0], world.problem, play.PLAN)
        monkeypatch.setattr(np, "zeros", counted)
        drive(lanes, engine, 2, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [RUNNING] * 3
    assert max(jobs) < 2 * world.model.layout.size
    monkeypatch.setattr(np, "zeros", zeros)
    for lane, spec in zip(lanes, specs, strict=True):
        alone = play.play(build(spec), engine=LoopEngine(world), world=world)
        assert lane.state is not None
        assert_allclose(flatten(lane.state)[0]["models"], flatten(alone.states[-1])[0]["models"], rtol=1e-4, atol=1e-5)


def test_a_dense_network_is_judged_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for dense networks take arrays: held models are fetched for them."""
    monkeypatch.setattr(device_vectors, "FEW", 0)
    there, model = worlds.make_world(), worlds.make_world().model.initial(0)()
    models = np.stack([model, model + 1, model - 1]).astype(np.float32)
    clients, which = np.arange(3), np.array([2, 0, 1])
    asks = [Evaluate(Serving(clients, held, which)) for held in (models, DeviceVectors.from_gradients(torch.as_tensor(models)).as_array())]
    with BatchedEngine(there, holds=True) as engine, LoopEngine(there) as loop:
        for run in (engine.run, loop.run):
            plain, found = run([StampedAsk(ask, 0, 1) for ask in asks])
            assert plain.hits.tolist() == found.hits.tolist()
            assert plain.loss.tobytes() == found.loss.tobytes()
