"""Our routes and the plain loop on a GPU. Compilation and captures apart; the data are on the device before the clock starts."""

from collections.abc import Sequence

import numpy as np
import torch
from benchmarks.peers.recorded import Plain
from benchmarks.studies import METHODS, SEEDS, lanes_of_study
from benchmarks.timing import apart, by_turns, heading, median, product_gflops, row, timed, verdict
from benchmarks.workloads import NEVER, PAPER, Images, Workload, unwatched

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Stamped
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.job import FusedJob
from coterie.engines.loop import LoopEngine
from coterie.engines.merge import merge
from coterie.engines.problem import Problem
from coterie.engines.routes import layer_sizes
from coterie.evidence.settings import Settings
from coterie.run.drive import drive
from coterie.run.execution import Execution
from coterie.run.study import Study

ROUNDS = 30


def _asks(problem: Problem, lanes: int, local: Local) -> list[Stamped]:
    everybody = np.arange(len(problem.federation))
    return [Stamped(Train(everybody, problem.initial(0)(), local), problem, seed, 1, seed) for seed in range(lanes)]


def _job(stamped: Sequence[Stamped]) -> FusedJob:
    return merge(stamped, [s.ask for s in stamped if isinstance(s.ask, Train)], layer_sizes(stamped[0].problem))


def _resident(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    federation = problem.federation
    return torch.from_numpy(federation.x.reshape(len(federation.x), -1)).cuda(), torch.from_numpy(federation.y).cuda()


def rates(images: Images) -> None:
    """Client steps a second of many equal trainings, kernel time; and how near they are to float64 on the worst of a few clients."""
    best = product_gflops("cuda", 8192) / 1e3
    heading(f"{torch.cuda.get_device_name(0)}: client steps a second (a large float32 product: {best:.0f} TFLOP/s)")
    for model, lanes, target in (("mclr", 13, 12.0), ("mlp(128)", 2, 0.0)):
        problem = Problem.of(images.divided("iid(clients=300,test=0)"), model)
        stamped, resident = _asks(problem, lanes, PAPER), _resident(problem)
        job = _job(stamped)
        seconds = median(lambda: fused_gpu.train_on_device(job, resident=resident), device="cuda")  # noqa: B023
        reached = float(job.steps().sum()) / seconds / 1e6
        row(f"{model}, {len(job.start)} x {job.steps()[0]} steps", f"{reached:.2f} M/s", f"{_error(stamped[0], resident):.1e} off")
        if target:
            verdict("MCLR client steps", reached, target, least=True, unit=" M/s")


def _error(stamped: Stamped, resident: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The worst of four clients against the loop in float64, as a share of how far training moved it."""
    assert isinstance(stamped.ask, Train)
    few = Stamped(stamped.ask.take(np.arange(4)), stamped.problem, stamped.seed, stamped.round_)
    [expected] = LoopEngine("cpu", torch.float64).run([few])
    found, _ = fused_gpu.train(_job([few]), resident=resident)
    return max(apart(a, b, stamped.ask.models[0]) for a, b in zip(found, expected.vectors, strict=True))


def sequential(images: Images) -> None:
    """One client alone: a chain of dependent steps, where nothing can be done side by side."""
    heading("one client alone, 4000 steps")
    for model, target in (("mclr", 11.0), ("mlp(128)", 0.0)):
        problem = Problem.of(images.divided("iid(clients=30,test=0)"), model)
        [everybody] = _asks(problem, 1, PAPER)
        assert isinstance(everybody.ask, Train)
        job, resident = _job([Stamped(everybody.ask.take(np.arange(1)), problem, 0, 1)]), _resident(problem)
        seconds = median(lambda: fused_gpu.train_on_device(job, resident=resident), device="cuda")  # noqa: B023
        a_step = seconds / int(job.steps()[0]) * 1e6
        row(model, f"{a_step:.2f} us/step")
        if target:
            verdict("MCLR sequential step", a_step, target, least=False, unit=" us")


def lanes(images: Images) -> None:
    """Rounds through the driver and the engine, evaluation off: the same ten rounds of 1 and of 70 lanes."""
    problem, engine = Problem.of(images.paper(), "mclr"), BatchedEngine("cuda")
    heading("a round of 70 lanes and of one (MNIST powerlaw, MCLR, cohort 20, E=20; driver and host included)")
    plan = Workload("", problem, PAPER, 20, 1).plan
    found = {}
    for count in (1, 70):
        crew = lanes_of_study(problem, range(-(-count // 2)), NEVER)[:count]
        for lane in crew:
            lane.plan = plan
        drive(crew, engine, 10, unwatched)  # warms up: kernels for the shapes, captures
        found[count] = timed(lambda: drive(crew, engine, 20, unwatched), "cuda") / 10  # noqa: B023
        row(f"{count} lanes", f"{found[count] * 1e3:.2f} ms")
    verdict("70 lanes / 1 lane", found[70] / found[1], 8, least=False)


def study(images: Images) -> None:
    """The real thing: a study of 70 lanes with evaluation each round, after a short one that warms up."""
    federation, engine = images.paper(), BatchedEngine("cuda")
    heading(f"35 seeds x FedAvg and FedProx x {ROUNDS} rounds, evaluated each round")

    def run(rounds: int) -> float:
        plan = lanes_of_study(Problem.of(federation, "mclr"), SEEDS[:1], rounds)[0].plan
        settings = Settings(methods=tuple(name for name, _ in METHODS), data=federation.name, seeds=tuple(SEEDS), plan=plan)
        ready = Study.prepare(settings, federation=federation, methods=[method for _, method in METHODS])
        return ready.run(engine=engine, execution=Execution(device="cuda")).seconds

    run(1)
    verdict("the whole study", run(ROUNDS), 15, least=False, unit=" s")


def cnn(images: Images) -> None:
    """A vectorised round of 20 clients against the plain loop on the same GPU."""
    problem = Problem.of(images.divided("shards(clients=100)"), "cnn")
    workload = Workload("cnn", problem, PAPER.but(epochs=1), cohort=20, rounds=1)
    engine, recorded = BatchedEngine("cuda"), workload.recorded().to("cuda")
    heading(f"McMahan's CNN, a round of 20 clients, E=1, B=10: {recorded.steps()} client steps")
    times = by_turns({"ours, vectorised": lambda: workload.ours(engine), "plain PyTorch": Plain(recorded).run}, repeats=3)
    ours, plain = times.values()
    for name, side in times.items():
        row(name, f"{side.median:.3f} s", f"{side.median / recorded.steps() * 1e6:.1f} us/step")
    row("routes", *engine.routes.values(), f"{apart(plain.model, ours.model, recorded.start.cpu().numpy()):.1e} apart")
    verdict("plain loop / vectorised", plain.median / ours.median, 12, least=True)


SECTIONS = {"rates": rates, "sequential": sequential, "lanes": lanes, "study": study, "cnn": cnn}
