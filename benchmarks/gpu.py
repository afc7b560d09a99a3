"""Our routes and the plain loop on a GPU. Compilation and captures apart; the data are on the device before the clock starts."""

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks import gpu_networks as networks
from benchmarks.studies import METHODS, SEEDS, lanes_of_study
from benchmarks.timing import apart, heading, median, product_gflops, row, timed, verdict
from benchmarks.workloads import NEVER, PAPER, Images, Workload, unwatched
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.fused import gpu_route as fused_gpu
from coterie.engines.jobs import TrainingJob, merge_asks
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import get_layer_sizes
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.run.driver import drive
from coterie.run.execution import Execution
from coterie.run.study import Study

ROUNDS = 30


def _asks(world: World, lanes: int, local: Local) -> list[Work]:
    everybody = np.arange(len(world.federation))
    return [Work.bind(StampedAsk(Train(everybody, world.model.initial(0)(), local), seed, 1, lane=seed), world) for seed in range(lanes)]


def _job(works: Sequence[Work]) -> TrainingJob:
    return merge_asks(works, [work.ask for work in works if isinstance(work.ask, Train)], get_layer_sizes(works[0].world))


def _resident(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    federation = world.federation
    return torch.from_numpy(federation.x.reshape(len(federation.x), -1)).cuda(), torch.from_numpy(federation.y).cuda()


def rates(images: Images) -> None:
    """Client steps a second of many equal trainings, kernel time; and how near they are to float64 on the worst of a few clients."""
    best = product_gflops("cuda", 8192) / 1e3
    heading(f"{torch.cuda.get_device_name(0)}: client steps a second (a large float32 product: {best:.0f} TFLOP/s)")
    for model, lanes, target in (("mclr", 13, 12.0), ("mlp(128)", 2, 0.0)):
        world = World.from_spec(images.divided("iid(clients=300,test=0)"), model)
        works, resident = _asks(world, lanes, PAPER), _resident(world)
        job = _job(works)
        seconds = median(lambda: fused_gpu.train_on_device(job, resident=resident), device="cuda")  # noqa: B023
        reached = float(job.steps().sum()) / seconds / 1e6
        row(f"{model}, {len(job.start)} x {job.steps()[0]} steps", f"{reached:.2f} M/s", f"{_error(works[0], resident):.1e} off")
        if target:
            verdict("MCLR client steps", reached, target, least=True, unit=" M/s")


def _error(work: Work, resident: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The worst of four clients against the loop in float64, as a share of how far training moved it."""
    assert isinstance(work.ask, Train)
    few = StampedAsk(work.ask.take(np.arange(4)), work.seed, work.round_)
    [expected] = LoopEngine(work.world, "cpu", torch.float64).run([few])
    found, _ = fused_gpu.train(_job([Work.bind(few, work.world)]), resident=resident)
    return max(apart(a, b, work.ask.models[0]) for a, b in zip(found, expected.vectors, strict=True))


def sequential(images: Images) -> None:
    """One client alone: a chain of dependent steps, where nothing can be done side by side."""
    heading("one client alone, 4000 steps")
    for model, target in (("mclr", 11.0), ("mlp(128)", 0.0)):
        world = World.from_spec(images.divided("iid(clients=30,test=0)"), model)
        [everybody] = _asks(world, 1, PAPER)
        assert isinstance(everybody.ask, Train)
        job, resident = _job([Work.bind(StampedAsk(everybody.ask.take(np.arange(1)), 0, 1), world)]), _resident(world)
        seconds = median(lambda: fused_gpu.train_on_device(job, resident=resident), device="cuda")  # noqa: B023
        a_step = seconds / int(job.steps()[0]) * 1e6
        row(model, f"{a_step:.2f} us/step")
        if target:
            verdict("MCLR sequential step", a_step, target, least=False, unit=" us")


def lanes(images: Images) -> None:
    """Rounds through the driver and the engine, evaluation off: the same ten rounds of 1 and of 70 lanes."""
    world = World.from_spec(images.paper(), "mclr")
    engine = BatchedEngine(world, "cuda", holds=True)
    heading("a round of 70 lanes and of one (MNIST powerlaw, MCLR, cohort 20, E=20; driver and host included)")
    plan = Workload("", world, PAPER, 20, 1).plan
    found = {}
    for count in (1, 70):
        lanes_run = lanes_of_study(world, range(-(-count // 2)), NEVER)[:count]
        for lane in lanes_run:
            lane.plan = plan
        drive(lanes_run, engine, 10, unwatched)  # warms up: kernels for the shapes, captures
        found[count] = timed(lambda: drive(lanes_run, engine, 20, unwatched), "cuda") / 10  # noqa: B023
        row(f"{count} lanes", f"{found[count] * 1e3:.2f} ms")
    verdict("70 lanes / 1 lane", found[70] / found[1], 5, least=False)


def study(images: Images) -> None:
    """The real thing: a study of 70 lanes with evaluation each round, after a short one that warms up."""
    federation = images.paper()
    world = World.from_spec(federation, "mclr")
    engine = BatchedEngine(world, "cuda", holds=True)
    heading(f"35 seeds x FedAvg and FedProx x {ROUNDS} rounds, evaluated each round")

    def run(rounds: int) -> float:
        plan = lanes_of_study(world, SEEDS[:1], rounds)[0].plan
        settings = Settings(methods=tuple(name for name, _ in METHODS), data=federation.name, seeds=tuple(SEEDS), plan=plan)
        ready = Study.prepare(settings, federation=federation, methods=[method for _, method in METHODS])
        return ready.run(engine=engine, execution=Execution(device="cuda")).seconds

    run(1)
    verdict("the whole study", run(ROUNDS), 4, least=False, unit=" s")


SECTIONS = {"rates": rates, "sequential": sequential, "lanes": lanes, "study": study, **networks.SECTIONS}
