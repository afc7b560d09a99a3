"""A study: draws x methods x seeds, run wave by wave and recorded."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from coterie._util.errors import UserError
from coterie.analysis.roles import check_groups, collect_facts
from coterie.core.local import Local
from coterie.core.method import Method, Problem
from coterie.core.model import MakeModule
from coterie.core.plan import Plan, parse_attack
from coterie.data.catalogue import load
from coterie.data.checks import describe_scale_problem
from coterie.data.client_scenarios import add_unseen, check_test_samples
from coterie.data.federation import Federation
from coterie.engines.batched import make_engine
from coterie.engines.engine import Engine
from coterie.engines.loss import Loss, get_loss, make_per_sample
from coterie.engines.world import World, check_fit
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_roster_table, make_tables
from coterie.methods.catalogue import build, get_spec
from coterie.models.catalogue import GivenModel, build_model, resolve_model
from coterie.run.async_rounds import check_async_methods, check_speeds
from coterie.run.callbacks import Callback, make_watchers, notify
from coterie.run.driver import run_waves
from coterie.run.execution import Execution, make_plan, override_workers
from coterie.run.lanes import Lane, check_early_stopping, make_lanes
from coterie.run.open_study import OpenedStudy, StudyOpener
from coterie.run.recorder import CheckpointSchedule, Recorder
from coterie.run.result import CompletedRun, Result, check_finished
from coterie.run.waves import TimeLimit, check_memory
from coterie.run.workers.scheduler import run_on_workers

MAX_KEPT_ANSWERS = 1_000_000  # test samples up to which the last round's answers are kept one by one: an eighth of a megabyte a lane


@dataclass(frozen=True)
class Study:
    """A study ready to run: the server's view of each draw, and the methods.

    A simulation also has worlds, from which its engine is made; a real federation brings its own engine.
    """

    settings: Settings
    problems: Mapping[int, Problem]  # by draw
    rosters: Mapping[int, pa.Table]  # by draw: the clients in the last round
    methods: tuple[Method[Any], ...]
    worlds: Mapping[int, World] = field(default_factory=dict)
    # whether test samples or clients may change from round to round, or only some clients are evaluated: rounds then record their own
    changing: bool = False
    setup_seconds: float = 0.0
    notices: tuple[str, ...] = ()  # for the user, before it runs

    def __post_init__(self) -> None:
        check_async_methods(self.settings.plan, self.settings.methods, self.methods)
        for problem in self.problems.values():
            clients = len(problem.roster_at(self.settings.plan.rounds))
            check_groups(self.settings.methods, self.methods, clients, self.settings.plan.cohort)
        facts = {**self.settings.facts, **collect_facts(self.settings.methods, self.methods)}
        object.__setattr__(self, "settings", replace(self.settings, facts=facts))

    @classmethod
    def prepare(
        cls,
        settings: Settings,
        *,
        data_dir: Path | None = None,
        federation: Federation | Mapping[int, Federation] | None = None,
        methods: Sequence[Method[Any]] | None = None,
        loss: Loss | None = None,
        make: MakeModule = build_model,
    ) -> "Study":
        """Build what the settings name, and refuse what cannot work. Objects may replace specs: federations by draw."""
        began = perf_counter()
        made = tuple(methods) if methods is not None else tuple(build(spec) for spec in settings.methods)
        given = dict.fromkeys(settings.draws, federation) if isinstance(federation, Federation) else federation or {}
        federations = {draw: given[draw] if draw in given else load(settings.data, draw, data_dir) for draw in settings.draws}
        attack = parse_attack(settings.plan.attack)
        if loss is not None and settings.plan.loss != "auto":
            raise UserError(f"The loss is given twice: {settings.plan.loss!r} in the plan, and one of your own; give it in one place.")
        losses = {
            draw: get_loss(settings.plan.loss, each.task) if loss is None else make_per_sample(loss) for draw, each in federations.items()
        }
        worlds = {draw: World.from_spec(each, settings.model, losses[draw], attack, make) for draw, each in federations.items()}
        for world in worlds.values():
            settings.plan.check(world.federation.participants)
            settings.plan.check_sites(world.federation.sites, settings.data)
            world.federation.check_disjoint()
            check_test_samples(world.federation, settings.data)
            assert world.model.layout.size  # builds the model, so that a wrong spec is refused before anything is written
            check_fit(world, settings.plan.local.batch_size, augments=settings.plan.local.augment is not None)
        return cls(
            settings,
            problems={draw: world.problem for draw, world in worlds.items()},
            # groups are compared with the true ones of the last round
            rosters={draw: make_roster_table(world.federation.at_round(settings.plan.rounds)) for draw, world in worlds.items()},
            methods=made,
            worlds=worlds,
            changing=settings.plan.sample_size is not None or any(world.federation.later for world in worlds.values()),
            setup_seconds=perf_counter() - began,
            notices=tuple(dict.fromkeys(notice for each in federations.values() if (notice := describe_scale_problem(each)) is not None)),
        )

    def run(
        self,
        *,
        out: Path | None = None,
        resume: bool = False,
        execution: Execution | None = None,
        engine: Engine | None = None,
        callbacks: Iterable[Callback] = (),
        budget: TimeLimit | None = None,
    ) -> Result:
        """Run all lanes to the last round.

        Args:
            out: The folder to write to; without it, the evidence is in memory.
            resume: Whether to resume the study in the folder.
            execution: Engine, device, threads and workers.
            engine: An engine of your own; it stays open.
            callbacks: Watch the run.
            budget: A time limit: a wave that would not fit is not started, and one that exceeds it ends with a whole segment, so that
                the evidence holds the same rounds of all methods for every seed.
        """
        execution, watchers = execution or Execution(), list(callbacks)
        check_speeds(self.settings.plan, self.problems.values())
        validation = all(problem.validation for problem in self.problems.values())
        drifts = any(world.federation.later for world in self.worlds.values()) if self.worlds else self.changing
        check_early_stopping(self.settings.plan, self.settings.data, validation=validation, changing=drifts)
        notify(watchers, *self.notices)
        if out is None:
            return self._run_lanes(None, execution.resolve(), engine, watchers, budget)
        opened = StudyOpener(out, self.settings, self.rosters, self.worlds).open(execution, resume)
        with opened.writer:
            notify(watchers, *opened.notices)
            return self._run_lanes(opened, opened.execution, engine, watchers, budget)

    def _run_lanes(
        self,
        opened: OpenedStudy | None,
        execution: Execution,
        engine: Engine | None,
        watchers: Sequence[Callback],
        budget: TimeLimit | None,
    ) -> Result:
        began = perf_counter()
        lanes, plan = self.lanes(), self.settings.plan
        check_memory(lanes)
        for lane in lanes:
            if opened is not None and lane.key in opened.lanes:
                restored = opened.lanes[lane.key]
                lane.resume_from(restored.end, restored.state, restored.pending)
        if opened is not None and opened.lanes and plan.patience is not None:
            _replay_validation_scores(lanes, Evidence.open(opened.writer.folder))
        schedule = CheckpointSchedule(execution, plan.rounds, len(lanes))
        recorder = Recorder(self, opened.writer if opened is not None else None, schedule, watchers)
        is_local = engine is None and not execution.is_distributed
        with self.engine(execution, recorder.routes) if is_local else nullcontext(engine) as used:
            setup = self.setup_seconds + perf_counter() - began
            for watcher in watchers:
                watcher.on_start(self.settings, len(lanes) * (plan.rounds + 1), sum(lane.round_ + 1 for lane in lanes))
            began = perf_counter()
            try:
                if used is None:
                    run_on_workers(self, lanes, execution, recorder, budget)
                else:
                    run_waves(lanes, used, execution, recorder, budget)
            finally:
                for watcher in watchers:
                    watcher.on_end()
        completed = CompletedRun(self, lanes) if self.worlds else None  # in a real federation the models are with the sites
        return Result(recorder.evidence(lanes), perf_counter() - began, setup, completed)

    def lanes(self) -> list[Lane]:
        """All lanes, before their first round."""
        methods = list(zip(self.settings.methods, self.methods, strict=True))
        # single answers are for the holder of the data, which a simulation is
        few = all(world.federation.test.sizes.sum() <= MAX_KEPT_ANSWERS for world in self.worlds.values())
        options = {"own_seeds": self.settings.own_seeds, "keeps_answers": bool(self.worlds) and few, "real": not self.worlds}
        return make_lanes(methods, self.settings.seeds, self.problems, self.settings.plan, **options)

    def make_tables(self, records: Sequence[RoundRecord]) -> dict[str, pa.Table]:
        """The tables of some rounds."""
        problem, is_sampled = next(iter(self.problems.values())), self.settings.plan.keep_clients is not None
        return make_tables(records, problem.model.outputs, drifting=self.changing, sampled=is_sampled, task=problem.task)

    def engine(self, execution: Execution, pinned: Mapping[str, str] | None = None) -> Engine:
        """The engine, on the routes of a resumed study (`pinned`), with its kernels compiled."""
        how = (execution.threads, pinned, execution.precision, execution.microbatch)
        engine = make_engine(self.worlds, execution.engine, execution.device, *how, holds=True)
        engine.prepare(self.settings.plan.local)
        return engine


def _replay_validation_scores(lanes: Sequence[Lane], evidence: Evidence) -> None:
    """Give resumed lanes their earlier validation scores, by which they may stop early."""
    by_key = {lane.key: lane for lane in lanes}
    rounds = evidence.frame("rounds", ["validation"]).sort_values("round", kind="stable")
    for draw, method, seed, round_, score in rounds[["draw", "method", "seed", "round", "validation"]].itertuples(index=False):
        if evidence.settings.plan.is_evaluated_anyway(round_):
            by_key[LaneKey(int(draw), str(method), int(seed))].patience.record_score(int(round_), float(score))


def study(
    methods: Sequence[Method[Any] | str] | Method[Any] | str,
    *,
    data: str | Federation = "digits/rotated",
    model: GivenModel = "mclr",
    seeds: Iterable[int] = (0,),
    data_seed: int = 0,
    unseen: float | None = None,
    plan: Plan | None = None,
    local: Local | None = None,
    loss: Loss | str | None = None,
    data_dir: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    execution: Execution | None = None,
    workers: int | None = None,
    ray: str | None = None,
    callbacks: Iterable[Callback] | None = None,
    **settings: Any,
) -> Result:
    """Run methods side by side under one protocol and return their evidence.

    Args:
        methods: Methods, or their specs.
        data: A federation, or its spec.
        model: A spec, a module (every seed starts from its parameters), or a class or function that makes one.
        seeds: The seeds of training.
        data_seed: The draw of the data.
        unseen: The share of clients that take no part in training and are scored apart.
        plan: All settings of the plan at once; a setting given twice is refused.
        local: The settings of local training.
        loss: A function, or the name of one. Default: the task's own loss.
        data_dir: The folder of data sets.
        out: The folder to write to; without it, the evidence is in memory.
        resume: Whether to resume the study in the folder.
        execution: Engine, device, threads and the like.
        workers: Processes of this machine that run waves in parallel; the results are the same.
        ray: A Ray cluster that does so: "auto" or its address.
        callbacks: Watch the run. Default: a progress bar in a notebook.
        settings: Those of `Plan` and `Local` by name: rounds, cohort, epochs, batch_size, lr and the others.

    Raises:
        NothingFinishedError: If no lane reaches the end; it has the reasons and the partial result.

    Example:
        >>> import coterie as ct
        >>> result = ct.study([ct.FedAvg(), ct.FedProx(mu=1)], data="synthetic(0,0,clients=10)", rounds=2, seeds=range(2))
        >>> list(result.table().index)
        ['fedavg', 'fedprox']
    """
    chosen = [methods] if isinstance(methods, (str, Method)) else list(methods)
    settings |= {"loss": loss} if isinstance(loss, str) else {}
    own_loss = None if isinstance(loss, str) else loss
    made = [build(m, trust=True) if isinstance(m, str) else m for m in chosen]
    labels = tuple(m if isinstance(m, str) else get_spec(m) for m in chosen)
    data = data if unseen is None else add_unseen(data, unseen)
    federation = data if isinstance(data, Federation) else None
    named, make = resolve_model(model)
    whole = Settings(
        methods=labels,
        data=federation.name if federation is not None else str(data),
        model=named,
        seeds=tuple(seeds),
        draws=(federation.data_seed if federation is not None else data_seed,),
        plan=make_plan(settings, plan, local),
    )
    watchers = make_watchers(callbacks)
    ready = Study.prepare(
        whole, data_dir=Path(data_dir) if data_dir else None, federation=federation, methods=made, loss=own_loss, make=make
    )
    if not watchers:  # which show notices
        for sentence in ready.notices:
            warnings.warn(sentence, stacklevel=2)
    execution = override_workers(execution or Execution(), workers=workers, ray=ray)
    return check_finished(ready.run(out=Path(out) if out else None, resume=resume, execution=execution, callbacks=watchers))
