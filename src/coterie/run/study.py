"""A study: methods x seeds on one federation, carried out wave by wave and written down as it goes."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.method import Method
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine
from coterie.engines.make import make_engine, resolve_device
from coterie.engines.problem import Loss, Problem, cross_entropy
from coterie.evidence import writer
from coterie.evidence.reader import Evidence, read_json, restore
from coterie.evidence.settings import Settings
from coterie.evidence.tables import TABLES, roster_table, tables_of
from coterie.methods.catalogue import build, spec_of
from coterie.run.budget import Budget
from coterie.run.callbacks import Callback
from coterie.run.drive import drive, waves
from coterie.run.execution import Execution
from coterie.run.lanes import RUNNING, Lane, RoundRecord, lanes_of
from coterie.run.options import plan_of
from coterie.run.result import Result

GIB = 1 << 30


@dataclass(frozen=True)
class Study:
    """Settings made real: the problem and the methods, ready to run."""

    settings: Settings
    problem: Problem
    methods: tuple[Method[Any], ...]
    setup_seconds: float = 0.0

    @classmethod
    def prepare(
        cls,
        settings: Settings,
        *,
        data_dir: Path | None = None,
        federation: Federation | None = None,
        methods: Sequence[Method[Any]] | None = None,
        loss: Loss = cross_entropy,
    ) -> "Study":
        """Build what the settings name, and refuse at once what cannot work. Objects may stand in for specs."""
        began = perf_counter()
        made = tuple(methods) if methods is not None else tuple(build(spec) for spec in settings.methods)
        federation = federation or load(settings.data, settings.data_seed, data_dir)
        settings.plan.check(len(federation))
        problem = Problem.of(federation, settings.model, loss)
        assert problem.layout.size  # the model is built once here, so that a wrong spec is refused before anything is written
        return cls(settings, problem, made, perf_counter() - began)

    def run(
        self,
        *,
        out: Path | None = None,
        resume: bool = False,
        execution: Execution | None = None,
        engine: Engine | None = None,
        callbacks: Iterable[Callback] = (),
        budget: Budget | None = None,
    ) -> Result:
        """Run all lanes to the last round. With `out`, everything is on disk as it goes, and `resume` goes on where that ended.

        A `budget` of time ends the run early and cleanly: a wave that would not fit is not begun, and one that outgrows it ends with a
        whole segment, so that what is written holds the same rounds of all methods for every seed.
        """
        execution = execution or Execution()
        if out is not None:
            execution = self._open(out, execution, resume)
        watchers = list(callbacks)
        began = perf_counter()
        engine = engine or self._engine(execution, out)
        setup = self.setup_seconds + perf_counter() - began
        lanes = lanes_of(list(zip(self.settings.methods, self.methods, strict=True)), self.settings.seeds, self.problem, self.settings.plan)
        groups = list(waves(lanes, int(execution.memory * GIB), execution.seeds_per_wave))
        reached = [restore(out, number, wave) if out is not None and resume else -1 for number, wave in enumerate(groups)]
        rounds = self.settings.plan.rounds
        for watcher in watchers:
            done = sum((last + 1) * len(wave) for last, wave in zip(reached, groups, strict=True))
            watcher.on_start(self.settings, len(lanes) * (rounds + 1), done)
        began = perf_counter()
        memory: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        try:
            for number, wave in enumerate(groups):
                if budget is not None and reached[number] < rounds and not budget.begin_wave():
                    break
                self._run_wave(number, wave, reached[number], engine, execution, out, memory, watchers, budget)
        finally:
            for watcher in watchers:
                watcher.on_end()
        evidence = Evidence.open(out) if out is not None else Evidence(self.settings, roster_table(self._last_world), memory=memory)
        troubles = {(lane.label, lane.seed): (lane.status, lane.reason) for lane in lanes if lane.status != RUNNING}
        return Result(evidence, perf_counter() - began, setup, troubles)

    def _run_wave(
        self,
        number: int,
        wave: Sequence[Lane],
        reached: int,
        engine: Engine,
        execution: Execution,
        out: Path | None,
        memory: dict[str, list[pa.Table]],
        watchers: Sequence[Callback],
        budget: Budget | None,
    ) -> None:
        """Advance a wave segment by segment. A segment is written when all its lanes have passed it."""
        records: list[RoundRecord] = []

        def watch(lane: Lane, record: RoundRecord) -> None:
            records.append(record)
            for watcher in watchers:
                watcher.on_round(lane, record)

        while reached < self.settings.plan.rounds and not (budget is not None and budget.over):
            segment = max(reached, 0) // execution.checkpoint_every + 1
            last = min(segment * execution.checkpoint_every, self.settings.plan.rounds)
            drive(wave, engine, last, watch)
            records.sort(key=lambda record: (record.lane, record.round_))
            if out is not None:
                writer.write_routes(out, engine.routes if isinstance(engine, BatchedEngine) else {})
                writer.write_segment(out, number, reached + 1, last, wave, records)
            else:
                federation = self.problem.federation
                for name, table in tables_of(records, len(federation.classes), drifting=bool(federation.later)).items():
                    memory[name].append(table)
            self._log(out, wave, last)
            records.clear()
            reached = last

    @property
    def _last_world(self) -> Federation:
        """The federation as the last round finds it: groups are compared with the true ones of that time."""
        return self.problem.federation.at(self.settings.plan.rounds)

    def _engine(self, execution: Execution, out: Path | None) -> Engine:
        """The engine, on the routes of the study that is resumed, with everything compiled that can be compiled ahead."""
        stored = out / "routes.json" if out is not None else None
        engine = make_engine(execution, read_json(stored) if stored is not None and stored.exists() else None)
        if isinstance(engine, BatchedEngine):
            engine.prepare(self.problem, self.settings.plan.local)
        return engine

    def _open(self, out: Path, execution: Execution, resume: bool) -> Execution:
        """Begin a folder, or check that the one there is this study; how it was carried out is taken from there."""
        if not resume:
            execution = replace(execution, device=resolve_device(execution.device))  # a resumed study stays on its device
            extras = {"execution": asdict(execution), "environment": environment()}
            writer.create(out, self.settings, extras, roster_table(self._last_world))
            return execution
        if not (out / "settings.json").exists():
            if out.exists() and any(out.iterdir()):
                raise UserError(f"{out} holds no study to resume: name the folder that --out made, or leave --resume away.")
            return self._open(out, execution, resume=False)
        stored = Settings.from_json(read_json(out / "settings.json"))
        if stored != self.settings:
            raise UserError(
                f"{out} holds another study (it differs in {', '.join(stored.differences(self.settings))}): choose another --out."
            )
        return Execution(**{**read_json(out / "execution.json"), "threads": execution.threads})

    def _log(self, out: Path | None, wave: Sequence[Lane], last: int) -> None:
        if out is None:
            return
        writer.log(out, f"seeds {wave[0].seed} to {wave[-1].seed}: rounds to {last} written")
        for lane in wave:
            if lane.status != RUNNING:
                writer.log(out, f"{lane.label} seed {lane.seed}: {lane.status} {lane.reason}")


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record; no part of what defines a study."""
    packages = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pandas")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cpu_count(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree, or an optional package that is not there
        return None


def study(
    methods: Sequence[Method[Any] | str] | Method[Any] | str,
    *,
    data: str | Federation = "digits/rotated",
    model: str = "mclr",
    seeds: Iterable[int] = (0,),
    data_seed: int = 0,
    plan: Plan | None = None,
    local: Local | None = None,
    loss: Loss = cross_entropy,
    data_dir: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    execution: Execution | None = None,
    callbacks: Iterable[Callback] = (),
    **settings: Any,
) -> Result:
    """Run methods side by side under one protocol and return their evidence.

    `settings` are those of `Plan` and `Local` by their names: rounds, cohort, epochs, batch_size, lr and the others. `plan` says all of
    them at once, `local` those of local training; what is said twice is refused.

    >>> import coterie as ct
    >>> result = ct.study([ct.FedAvg(), ct.FedProx(mu=1)], data="synthetic(0,0,clients=10)", rounds=2, seeds=range(2))
    >>> list(result.table().index)
    ['fedavg', 'fedprox']
    """
    chosen = [methods] if isinstance(methods, (str, Method)) else list(methods)
    made = [build(m) if isinstance(m, str) else m for m in chosen]
    labels = tuple(m if isinstance(m, str) else spec_of(m) for m in chosen)
    federation = data if isinstance(data, Federation) else None
    whole = Settings(
        methods=labels,
        data=federation.name if federation is not None else str(data),
        model=model,
        seeds=tuple(seeds),
        data_seed=federation.data_seed if federation is not None else data_seed,
        plan=plan_of(settings, plan, local),
    )
    ready = Study.prepare(whole, data_dir=Path(data_dir) if data_dir else None, federation=federation, methods=made, loss=loss)
    return ready.run(out=Path(out) if out else None, resume=resume, execution=execution, callbacks=callbacks)
