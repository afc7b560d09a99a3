"""Which method wins? Every method under one protocol in worlds of known and of natural shift. Written before any of its results.

python studies/rivals.py choose OUT [--only WORLD] [--methods NAME,NAME]   # settings of each method, on draws that are not used again
python studies/rivals.py run OUT [--only WORLD] [--methods NAME,NAME]      # ten draws at these settings (choosing them where that is left)
python studies/rivals.py collect OUT                                       # into the small tables of results/rivals/
python studies/rivals.py list                                              # worlds, methods, and what cannot run

`--jobs 16` runs so many pieces at once, `--minutes 7` starts none after that time. A piece is one method in one world; one that is there
is not run again. Methods that this version does not have are listed as not run.

The protocol.

- Worlds: `WORLDS`. All clients take part in every round, unless the world is about that.
- Training: softmax regression (in network worlds McMahan's CNN, whose products are in TF32), 40 rounds of one local epoch in batches of 10.
  A method that trains several models on a visit has as many fewer rounds, so that all methods take as many client steps. The second table
  reads scores where a method has sent as many bytes as FedAvg in its 40 rounds.
- Tuning: six trials for each method, world and stage, by accuracy on validation parts (a fifth of each client's samples) of draws 90 to 92.
  Four learning rates at the method's first setting; then, at the best of them, its two other settings (`METHODS`), or, of a method without
  a setting, the rates 1.7 times as high and as low. The number of groups is not known: 4, then 2 and 8 (2, 3, 4 of four clients).
- kNN-Per's share of neighbours is tuned for all clients together, since a choice by each client takes ten times as long.
- Stages: *served*, the model that the server would send; *tuned*, the same after 5 local epochs of each client. A method that itself serves
  models which ended their training at the client (`personal`) is judged as tuned, as it is. No comparison is made across stages. Newcomers
  without labels cannot train, so their world has the stage served alone.
- Score: accuracy over all test samples, mean of the last ten rounds. Draws 100 to 109, a seed each. In worlds of newcomers, the score is
  theirs.
- Against FedAvg of the same stage: the interval over draws and over test clients, whichever is wider; p by both, the larger; Holm's
  correction over the methods of a world and stage. Clients are clearly worse off by a sign test of their own test samples, with the false
  discovery rate over clients at 5 %.
- Controls: random groups of the same sizes for each method that groups; FedAvg with uniform weights; FedAvg tuned; clients alone.
- Over worlds: mean ranks with Friedman's test and Nemenyi's critical difference; regret to the best method of the same stage.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.analysis.draws import compute_mean_credits
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records
from coterie.analysis.roles import get_assignment, make_variant
from coterie.analysis.scores import TAIL_ROUNDS
from coterie.core.method import Method
from coterie.data.catalogue import load
from coterie.engines.device import DeviceError
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.wrapper import RateOverride
from coterie.run.execution import Execution, make_plan
from coterie.run.study import Study

FIRST, DRAWS, TUNING = 100, 10, (90, 91, 92)
ROUNDS, BATCH, TUNED_EPOCHS = 40, 10, 5
GROUPS, FEW_GROUPS = (4, 2, 8), (2, 3, 4)
RATES = (0.1, 0.3, 1.0, 3.0)
FACTOR = 1.7  # between the best rate and its neighbours, for a method without a setting
Stage = Literal["served", "tuned"]
FILES = Path(__file__).resolve().parents[1] / "results" / "rivals"


@dataclass(frozen=True)
class World:
    """Where methods are compared."""

    kind: str  # of shift
    severity: str
    data: str
    cohort: int | None = None
    model: str = "mclr"
    rates: tuple[float, ...] = RATES
    groups: tuple[int, ...] = GROUPS
    newcomers: bool = False  # whether the clients that took no part are scored
    rounds: int = ROUNDS
    evaluate_every: int = 1

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("served",) if "labelled=false" in self.data else ("served", "tuned")

    @property
    def tuning_data(self) -> str:
        """The same with validation parts."""
        if "(" not in self.data:
            return f"{self.data}(validation=0.2)"
        if "test=" not in self.data:
            return self.data.replace(")", ",validation=0.2)", 1)
        return self.data.replace("test=", "validation=0.2,test=", 1)


def _made(kind: str, severity: str, spec: str, **settings: Any) -> World:
    """A world of 40 clients with about 45 samples each, three in ten of them for tests."""
    return World(kind, severity, f"digits/{spec}", **settings)


def _natural(data: str, rate: float, **settings: Any) -> World:
    """A federation of Natural-12 with at most 100 clients of at most 200 samples; rates around the one that was best for FedAvg there."""
    rates = tuple(float(f"{rate * factor:.3g}") for factor in (0.1, 1 / 3, 1, 3))
    return World("natural", "", data, rates=rates, **settings)


def _network(severity: str, data: str) -> World:
    """McMahan's CNN; every second round is evaluated, so that the last ten are rounds 22 to 40."""
    return World("network", severity, data, model="cnn", rates=(0.01, 0.03, 0.1, 0.3), evaluate_every=2)


_40 = "clients=40,test=0.3"
WORLDS: dict[str, World] = {
    "iid": _made("none", "", f"iid({_40})"),
    "labels-mild": _made("labels", "mild", f"dirichlet(alpha=1,{_40})"),
    "labels-strong": _made("labels", "strong", f"dirichlet(alpha=0.1,{_40})"),
    "labels-groups": _made("labels", "groups", f"labelsubset(groups=4,{_40})"),
    "rotation-2": _made("features", "two angles", f"rotated(groups=2,{_40})"),
    "rotation-4": _made("features", "four angles", f"rotated(groups=4,{_40})"),
    "style-mild": _made("features", "mild style", f"style(groups=4,strength=0.5,{_40})"),
    "style-strong": _made("features", "strong style", f"style(groups=4,strength=1,{_40})"),
    "concept-mild": _made("concept", "mild", f"labelswap(groups=4,pairs=1,{_40})"),
    "concept-strong": _made("concept", "strong", f"labelswap(groups=2,pairs=5,{_40})"),
    "quantity": _made("quantity", "", f"quantity(alpha=0.5,{_40})"),
    "quantity-rotation": _made("quantity", "with groups", f"quantity(alpha=0.5,{_40})/rotated(groups=4)"),
    "mixtures-features": _made("mixtures", "features", f"mixtures(groups=3,alpha=0.4,{_40})"),
    "mixtures-concept": _made("mixtures", "concept", f"mixtures(groups=3,alpha=0.4,change=labelswap,{_40})"),
    "overlapping": _made("overlapping groups", "", f"overlapping(groups=4,share=0.5,{_40})"),
    "unequal": _made("unequal groups", "", f"rotated(groups=4,shares=(0.7,0.15,0.1,0.05),{_40})"),
    "continuum-mild": _made("continuum", "60 degrees", f"continuum(degrees=60,{_40})"),
    "continuum-strong": _made("continuum", "180 degrees", f"continuum(degrees=180,{_40})"),
    "synthetic": World("continuum", "synthetic(1,1)", "synthetic(1,1,clients=30)", rates=(0.01, 0.03, 0.1, 0.3)),
    "partial-rotation": _made("partial participation", "groups", f"rotated(groups=4,{_40})", cohort=10),
    "partial-labels": _made("partial participation", "labels", f"dirichlet(alpha=0.1,{_40})", cohort=10),
    "newcomers": _made("newcomers", "with labels", "rotated(groups=4,clients=50,test=0.3)/unseen(0.2)", newcomers=True),
    "newcomers-unlabelled": _made(
        "newcomers", "without labels", "rotated(groups=4,clients=50,test=0.3)/unseen(0.2,labelled=false)", newcomers=True
    ),
    "heart": _natural("heart", 0.1, groups=FEW_GROUPS),
    "clinics": _natural("covid_clinics/natural(test=0.2,least=10,most=200)", 0.003),
    "countries": _natural("wvs_countries/natural(test=0.2,least=10,most=200)", 0.01),
    "neighbourhoods": _natural("minneapolis_stops/natural(test=0.2,least=10,most=200)", 0.03),
    "states": _natural("births_states/natural(test=0.2,least=10,most=200)", 0.3),
    "carriers": _natural("flights_carriers/natural(test=0.2,least=10,most=200)", 0.1),
    "exercises": _natural("watch_exercises/natural(test=0.2)", 3.0),
    "readers": _natural("goodreads/natural(test=0.2)", 0.003),
    "tweeters": _natural("sent140/natural(test=0.2,least=10,clients=100)", 3.0),
    "writers-digits": _natural("qmnist/natural(clients=25,test=0.2)", 0.1),
    "writers-letters": _natural("femnist/natural(clients=15,test=0.2)", 3.0),
    "lecturers": _natural("insteval/natural(test=0.2,least=20,clients=100)", 0.1),
    "schools": _natural("chem97/natural(test=0.2,least=20,clients=100)", 0.3),
    # for a GPU
    "network-writers": _network("natural", "femnist/natural(clients=40,test=0.2,least=50,most=100)"),
    "network-rotation": _network("four angles", "mnist/iid(clients=40,most=100,test=0.5)/rotated(groups=4)"),
}


@dataclass(frozen=True)
class Entry:
    """A method: its settings in the order of trials, `{}` standing for the number of groups."""

    family: Literal["baseline", "paper", "rival"]
    settings: tuple[str, ...]  # one, or the first and two others
    models: tuple[int, ...] = (1,)  # that a client trains on a visit, for each setting or for all
    loops: int = 1  # of them that one training of the evidence counts once
    personal: bool = False  # serves what ended its training at the client: judged as tuned
    cost: float = 1.0  # of a piece, as one with compiled kernels takes 1: long pieces are started last
    networks_only: bool = False
    home: tuple[str, ...] = ()  # worlds of the kind of shift that its paper is about

    def trials(self, world: World) -> list[tuple[str, int]]:
        """The settings with the models that each trains."""
        specs = list(self.settings)
        if "{}" in specs[0]:
            specs = [specs[0].format(number) for number in world.groups]
        return [(spec, self.models[min(place, len(self.models) - 1)]) for place, spec in enumerate(specs)]

    def stages(self, world: World) -> tuple[Stage, ...]:
        """Those at which it is judged in a world."""
        return tuple(stage for stage in world.stages if stage == "tuned" or not self.personal)


METHODS: dict[str, Entry] = {
    "fedavg": Entry("baseline", ("fedavg",)),
    "uniform": Entry("baseline", ("fedavg(weighting=uniform)",)),
    "local": Entry("baseline", ("local",), personal=True),
    "fedprox": Entry("baseline", ("fedprox(mu=0.1)", "fedprox(mu=0.01)", "fedprox(mu=1)"), home=("synthetic", "labels-strong")),
    "scaffold": Entry("baseline", ("scaffold",), home=("labels-strong",)),
    "ditto": Entry(
        "baseline",
        ("ditto(lam=0.1)", "ditto(lam=0.01)", "ditto(lam=1)"),
        (2,),
        loops=2,
        personal=True,
        cost=10,
        home=("labels-strong", "synthetic"),
    ),
    "fedsim": Entry("paper", ("fedsim(clusters={})",), home=("labels-strong", "synthetic")),
    "fedgroup": Entry("paper", ("fedgroup(groups={})",), home=("labels-groups", "synthetic")),
    "fesem": Entry("paper", ("fesem(groups={})",), home=("writers-letters", "labels-strong")),
    "fedex": Entry("paper", ("fedex(groups={})",), home=("labels-strong",)),
    "simprox": Entry("paper", ("simprox(temperature=1)", "simprox(temperature=0.1)", "simprox(temperature=10)"), home=("labels-mild",)),
    "ifca": Entry("paper", ("ifca(groups={})",), home=("rotation-2", "rotation-4")),
    "cfl": Entry("paper", ("cfl(gamma=0.6)", "cfl(gamma=0.4)", "cfl(gamma=0.8)"), home=("concept-mild", "concept-strong")),
    "flhc": Entry("paper", ("flhc(groups={})",), home=("labels-groups", "concept-mild")),
    "clove": Entry("rival", ("clove(groups={})",), home=("rotation-4", "concept-mild", "labels-groups")),
    "fedem": Entry(
        "rival",
        ("fedem(groups=3)", "fedem(groups=2)", "fedem(groups=4)"),
        (3, 2, 4),
        cost=10,
        home=("mixtures-features", "mixtures-concept"),
    ),
    "fedrc": Entry(
        "rival",
        ("fedrc(groups=3)", "fedrc(groups=2)", "fedrc(groups=4)"),
        (3, 2, 4),
        cost=10,
        home=("concept-mild", "mixtures-concept"),
    ),
    "flux": Entry("rival", ("flux",), home=("rotation-4", "labels-groups", "newcomers-unlabelled")),
    "feroma": Entry("rival", ("feroma",), home=("rotation-4", "continuum-strong")),
    "fedfew": Entry(
        "rival", ("fedfew(groups=3)", "fedfew(groups=2)", "fedfew(groups=4)"), (3, 2, 4), cost=10, home=("labels-strong", "labels-mild")
    ),
    "cflgp": Entry("rival", ("cflgp(groups={})",), home=("rotation-4", "concept-mild")),
    "pfedgraph": Entry(
        "rival", ("pfedgraph(alpha=0.8)", "pfedgraph(alpha=0.4)", "pfedgraph(alpha=1.6)"), cost=10, home=("labels-mild", "labels-strong")
    ),
    "fedgwc": Entry("rival", ("fedgwc",), cost=10, home=("labels-strong", "style-strong")),
    "apfl": Entry(
        "rival",
        ("apfl(alpha=0.5)", "apfl(alpha=0.25)", "apfl(alpha=0.75)"),
        (2,),
        loops=2,
        personal=True,
        cost=10,
        home=("labels-strong", "synthetic"),
    ),
    "fedala": Entry(
        "rival", ("fedala(rate=1)", "fedala(rate=0.3)", "fedala(rate=3)"), personal=True, cost=30, home=("labels-strong", "labels-mild")
    ),
    "pacfl": Entry("rival", ("pacfl",), home=("labels-groups", "rotation-4")),
    "fedclust": Entry("rival", ("fedclust(groups={})",), home=("labels-strong", "labels-groups")),
    "knn": Entry(
        "rival",
        ("fedavg+knn(lam=0.5)", "fedavg+knn(lam=0.25)", "fedavg+knn(lam=0.75)"),
        personal=True,
        home=("labels-mild", "newcomers"),
    ),
    "fedper": Entry("rival", ("fedavg+private(layers=head)",), personal=True, cost=10, networks_only=True, home=("network-writers",)),
    "auto": Entry("rival", ("auto",), personal=True, cost=3),
}


def find_reason_not_to_run(entry: Entry, world: World) -> str | None:
    """Why a method cannot run in a world, in one sentence; None where it can."""
    if entry.networks_only and world.model == "mclr":
        return "A softmax regression has one layer, so there is no body to share: it runs in the network worlds."
    if not entry.stages(world):
        return "Newcomers without labels cannot train, and it serves what clients have trained: it has no served stage."
    if world.newcomers and entry.settings == ("local",):
        return "A newcomer that trains alone is not one that a federation serves: `local` would give it the untrained start."
    try:
        for spec, _ in entry.trials(world):
            build(spec)
    except UserError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Piece:
    """One method in one world, below a folder."""

    world: str
    method: str
    out: Path
    data_dir: Path | None = None
    device: str = "cpu"

    @property
    def choice(self) -> Path:
        return self.out / "choices" / self.world / f"{self.method}.json"

    @property
    def result(self) -> Path:
        return self.out / "pieces" / self.world / f"{self.method}.npz"

    @property
    def weight(self) -> float:
        """How long it may take, relative to others."""
        return METHODS[self.method].cost * (5 if WORLDS[self.world].model != "mclr" else 1)

    def choose(self) -> dict[str, Any]:
        """Six trials for each stage on validation parts; what was chosen is kept."""
        if self.choice.exists():
            stored: dict[str, Any] = json.loads(self.choice.read_text(encoding="utf-8"))
            return stored
        world, entry = WORLDS[self.world], METHODS[self.method]
        load(world.tuning_data, data_seed=TUNING[0], data_dir=self.data_dir)  # a fault of the data is not one of the method
        (first, models), *others = entry.trials(world)
        stages = entry.stages(world)
        found: dict[str, list[Trial]] = {stage: [] for stage in stages}
        adapts = {stage: stage == "tuned" and not entry.personal for stage in stages}
        self._try([Trial(stage, first, rate, models, adapts[stage]) for stage in stages for rate in world.rates], found)
        more = []
        for stage in stages:
            best = _choose_best(found[stage])
            if best is None:
                continue
            rates = [float(f"{best.rate * times:.3g}") for times in (1 / FACTOR, FACTOR)]
            settings = [(spec, best.rate, count) for spec, count in others] or [(first, rate, models) for rate in rates]
            more += [Trial(stage, *own, adapts[stage]) for own in settings]
        self._try(more, found)
        made = {stage: _describe_choice(trials) for stage, trials in found.items()}
        _write_whole(self.choice, json.dumps(made).encode())
        return made

    def _try(self, trials: Sequence["Trial"], found: dict[str, list["Trial"]]) -> None:
        world = WORLDS[self.world]
        for stage, count in sorted({(trial.stage, trial.models) for trial in trials}):
            some = [trial for trial in trials if (trial.stage, trial.models) == (stage, count)]
            try:
                draws, problems = self._study(
                    {trial.label: trial.make() for trial in some}, world.tuning_data, TUNING, world.rounds // count
                )
            except DeviceError:  # a full GPU says nothing about the method: the piece is left for another run
                raise
            except UserError as error:  # what a method refuses at one stage
                found[stage] += [replace(trial, why=str(error)) for trial in some]
                continue
            for trial in some:
                scores = [float(records.validation[records.place(trial.label), 0, -TAIL_ROUNDS:].mean()) for records in draws]
                known = trial.label not in problems and np.isfinite(scores).all()
                found[trial.stage].append(
                    replace(trial, validation=float(np.mean(scores)) if known else None, why=problems.get(trial.label, ""))
                )

    def run(self) -> None:
        """The ten draws at the settings chosen for each stage, with random groups beside a method that groups."""
        if self.result.exists():
            return
        began, world = time.perf_counter(), WORLDS[self.world]
        arrays: dict[str, Any] = {}
        stored: dict[str, Any] = {"world": self.world, "method": self.method, "data": world.data, "variants": {}}
        for stage, chosen in self.choose().items():
            if chosen["spec"] is None:
                stored["variants"][stage] = {"not_run": chosen["why"]}
                continue
            adapts = stage == "tuned" and not METHODS[self.method].personal
            trial = Trial(stage, chosen["spec"], chosen["rate"], chosen["models"], adapts)
            variants = {stage: trial.make()}
            if get_assignment(variants[stage]) == "similar":
                variants[f"{stage} random"] = make_variant(variants[stage], "random")
            draws, problems = self._study(variants, world.data, range(FIRST, FIRST + DRAWS), world.rounds // trial.models)
            for name in variants:
                if name in problems:
                    stored["variants"][name] = {"not_run": problems[name]}
                    continue
                arrays |= {f"{name}/{key}": value for key, value in measure(draws, name, world).items()}
                stored["variants"][name] = {
                    **chosen,
                    **measure_costs(draws, name, METHODS[self.method].loops),
                }
        stored["seconds"] = round(time.perf_counter() - began, 2)
        _write_arrays(self.result, arrays | {"stored": np.frombuffer(json.dumps(stored).encode(), dtype=np.uint8)})

    def _study(self, methods: dict[str, Method[Any]], data: str, draws: Iterable[int], rounds: int) -> tuple[list[Records], dict[str, str]]:
        """The records of each draw, and of methods of which a run did not end, why."""
        world = WORLDS[self.world]
        every = max(1, world.evaluate_every * rounds // world.rounds)
        training = {"rounds": rounds, "epochs": 1, "batch_size": BATCH, "cohort": world.cohort, "evaluate_every": every}
        plan = make_plan(training, None, None)
        settings = Settings(methods=tuple(methods), data=data, model=world.model, seeds=(0,), draws=tuple(draws), own_seeds=True, plan=plan)
        study = Study.prepare(settings, data_dir=self.data_dir, methods=list(methods.values()))
        on_gpu = Execution(device=self.device, precision="tf32", memory=8.0)  # GiB: pieces share a GPU
        result = study.run(execution=Execution(threads=1) if self.device == "cpu" else on_gpu)
        problems = {key.method: f"{end.reason}" for key, end in result.problems.items()}
        return [read_records(result.evidence.select_draw(draw)) for draw in settings.draws], problems


@dataclass(frozen=True)
class Trial:
    """A method's setting at a learning rate, at one stage."""

    stage: str
    spec: str
    rate: float
    models: int
    adapts: bool  # whether clients train for some epochs after serving
    validation: float | None = None
    why: str = ""  # it has no score

    @property
    def label(self) -> str:
        return f"{self.stage} {self.spec} {self.rate:g}"

    def make(self) -> Method[Any]:
        method = build(self.spec)
        judged = FineTuned(method=method, epochs=TUNED_EPOCHS) if self.adapts else method
        return RateOverride(method=judged, lr=self.rate)


def _choose_best(trials: Sequence[Trial]) -> Trial | None:
    """Of equals the first."""
    return max((trial for trial in trials if trial.validation is not None), key=lambda trial: trial.validation or 0.0, default=None)


def _describe_choice(trials: Sequence[Trial]) -> dict[str, Any]:
    best = _choose_best(trials)
    tried = [[trial.spec, trial.rate, None if trial.validation is None else round(trial.validation, 6)] for trial in trials]
    if best is None:
        return {"spec": None, "why": next((trial.why for trial in trials if trial.why), "no trial has a score"), "trials": tried}
    return {"spec": best.spec, "rate": best.rate, "models": best.models, "trials": tried}


def measure(draws: Sequence[Records], name: str, world: World) -> dict[str, Any]:
    """What intervals, tests and tables are made of, a row a draw: right answers of each client (mean of the last ten rounds), test samples,
    the curve, bytes so far, and the answers to single samples after the last round."""
    scored = [records.unseen if world.newcomers else records for records in draws]
    assert all(records is not None for records in scored)
    known = [records for records in scored if records is not None]
    place = known[0].place(name)
    tail = slice(max(len(known[0].rounds) - TAIL_ROUNDS, 1), None)
    most = max(len(records.test) for records in known)
    made: dict[str, Any] = {
        "hits": np.stack([_pad(compute_mean_credits(records, tail, place)[0], most) for records in known]).astype(np.float32),
        "tests": np.stack([_pad(records.test, most) for records in known]).astype(np.int32),
        "held": np.array([int(records.train.sum()) for records in draws]),
        "curve": np.stack([records.accuracy[place, 0] for records in known]).astype(np.float32),
        "bytes": np.stack([_count_bytes(records, place) for records in draws]),
    }
    if all(records.answers is not None for records in known):
        answers = [np.asarray(records.answers)[place, 0] for records in known]  # (N, bytes)
        width = max(own.shape[1] for own in answers)
        made["answers"] = np.stack([np.pad(own, ((0, most - len(own)), (0, width - own.shape[1]))) for own in answers])
    return made


def _count_bytes(records: Records, place: int) -> Any:
    """(R,) sent until each evaluated round."""
    return np.nancumsum(records.costs["bytes_up"][place, 0] + records.costs["bytes_down"][place, 0])[records.rounds]


def measure_costs(draws: Sequence[Records], name: str, loops: int) -> dict[str, float]:
    """Of a run, mean over draws; evidence counts the steps of a client's first loop."""
    place = draws[0].place(name)
    found = {key: [float(np.nansum(records.costs[key][place, 0])) for records in draws] for key in ("steps", "passes")}
    found["server_seconds"] = [float(np.nansum(records.server_seconds[place, 0])) for records in draws]
    means = {key: float(np.mean(values)) for key, values in found.items()}
    return means | {key: loops * means[key] for key in ("steps", "passes")}


def _pad(values: Any, most: int) -> Any:
    return np.pad(np.asarray(values), (0, most - len(values)))


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    import io

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    _write_whole(path, buffer.getvalue())


def _write_whole(path: Path, content: bytes) -> None:
    """Under its name only when it is complete: a killed run leaves no half piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def run_piece(piece: Piece, what: str) -> str | None:
    """One piece; why it could not be run, or None."""
    try:
        piece.choose() if what == "choose" else piece.run()
    except UserError as error:
        return str(error)
    except Exception as error:  # one method that fails must not end the others
        return f"{type(error).__name__}: {error}"
    return None


def run_pieces(pieces: Sequence[Piece], what: str, jobs: int, minutes: float) -> dict[tuple[str, str], str]:
    """All pieces, the shortest first, so that a time limit leaves out few; those that could not be run, and why."""
    deadline = time.monotonic() + 60 * minutes
    left = sorted((p for p in pieces if not (p.choice if what == "choose" else p.result).exists()), key=lambda piece: piece.weight)
    failed: dict[tuple[str, str], str] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[Any, Piece] = {}
        queue = iter(left)
        while True:
            while len(running) < jobs and time.monotonic() < deadline and (piece := next(queue, None)) is not None:
                running[pool.submit(run_piece, piece, what)] = piece
            if not running:
                break
            done = next(as_completed(running))
            piece = running.pop(done)
            if (why := done.result()) is not None:
                failed[piece.world, piece.method] = why
            print(f"{piece.world:22} {piece.method:10} {'done' if why is None else why}", flush=True)
    return failed


def list_pieces(
    out: Path, worlds: Sequence[str], methods: Sequence[str], **settings: Any
) -> tuple[list[Piece], dict[tuple[str, str], str]]:
    """The pieces that can run, and why the others cannot."""
    pieces, reasons = [], {}
    for world in worlds:
        for method in methods:
            why = find_reason_not_to_run(METHODS[method], WORLDS[world])
            if why is None:
                pieces.append(Piece(world, method, out, **settings))
            else:
                reasons[world, method] = why
    return pieces, reasons


def _keep_reasons(path: Path, reasons: dict[tuple[str, str], str], asked: Set[tuple[str, str]]) -> None:
    """Why pieces could not be run: those of this run, and of other runs into the same folder."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    others = {(row["world"], row["method"]): row["why"] for row in stored}
    known = {key: why for key, why in others.items() if key not in asked} | reasons
    rows = [{"world": world, "method": method, "why": why} for (world, method), why in sorted(known.items())]
    _write_whole(path, json.dumps(rows, indent=1).encode())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "run", "collect", "list"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("rivals"))
    parser.add_argument("--only", action="append", default=[], choices=list(WORLDS), metavar="WORLD")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--files", type=Path, default=FILES, help="where collect writes")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    methods = args.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        sys.exit(f"There is no method {unknown[0]!r} in this study: choose from {', '.join(METHODS)}.")
    worlds = args.only or [name for name, world in WORLDS.items() if world.model == "mclr"]
    if args.what == "collect":
        from rivals_tables import collect

        try:
            collect(args.out, args.files)
        except UserError as error:
            sys.exit(str(error))
        return
    pieces, reasons = list_pieces(args.out, worlds, methods, data_dir=args.data_dir, device=args.device)
    if args.what == "list":
        print(f"{len(pieces)} pieces can run.")
    else:
        reasons |= run_pieces(pieces, args.what, args.jobs, args.minutes)
        args.out.mkdir(parents=True, exist_ok=True)
        _keep_reasons(args.out / "not_run.json", reasons, {(piece.world, piece.method) for piece in pieces})
    for (world, method), why in sorted(reasons.items()):
        print(f"not run: {world} {method}: {why}")


if __name__ == "__main__":
    main()
