"""A study: draws x methods x seeds, carried out wave by wave and written down as it goes."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
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
from coterie.engines.device import get_resident_memory
from coterie.engines.engine import Engine
from coterie.engines.loss import Loss, get_loss, make_per_sample
from coterie.engines.world import World, check_fit
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_roster_table
from coterie.methods.catalogue import build, get_spec
from coterie.models.catalogue import GivenModel, build_model, resolve_model
from coterie.run.async_rounds import check_async_methods, check_speeds
from coterie.run.callbacks import Callback, make_watchers
from coterie.run.driver import is_wave_finished, run_segments
from coterie.run.execution import Execution, make_plan, override_workers
from coterie.run.lanes import Lane, check_early_stopping, make_lanes
from coterie.run.open_study import OpenedStudy, StudyOpener
from coterie.run.recorder import CheckpointSchedule, Recorder
from coterie.run.result import CompletedRun, Result, check_finished
from coterie.run.waves import TimeLimit, check_memory, describe_spill, split_into_waves
from coterie.run.workers.scheduler import run_on_workers

GIB = 1 << 30
MAX_KEPT_ANSWERS = 1_000_000  # test samples up to which the last round's answers are kept one by one: an eighth of a megabyte a lane


@dataclass(frozen=True)
class Study:
    """Settings made real: what the server knows of each draw, and the methods, ready to run.

    A simulation has worlds, too, from which its engine is made; a real federation brings an engine of its own.
    """

    settings: Settings
    problems: Mapping[int, Problem]  # by draw
    rosters: Mapping[int, pa.Table]  # by draw: the clients, as the last round finds them
    methods: tuple[Method[Any], ...]
    worlds: Mapping[int, World] = field(default_factory=dict)
    # whether test samples may change from round to round, clients come later or only some are looked at: every round then says its own
    changing: bool = False
    setup_seconds: float = 0.0
    notices: tuple[str, ...] = ()  # what the user should know of before it runs

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
        """Build what the settings name, and refuse at once what cannot work. Objects may stand in for specs: federations by draw."""
        began = perf_counter()
        made = tuple(methods) if methods is not None else tuple(build(spec) for spec in settings.methods)
        given = dict.fromkeys(settings.draws, federation) if isinstance(federation, Federation) else federation or {}
        federations = {draw: given[draw] if draw in given else load(settings.data, draw, data_dir) for draw in settings.draws}
        attack = parse_attack(settings.plan.attack)
        if loss is not None and settings.plan.loss != "auto":
            raise UserError(f"The loss is said twice: {settings.plan.loss!r} in the plan, and one of your own; say it in one place.")
        losses = {
            draw: get_loss(settings.plan.loss, each.task) if loss is None else make_per_sample(loss) for draw, each in federations.items()
        }
        worlds = {draw: World.of(each, settings.model, losses[draw], attack, make) for draw, each in federations.items()}
        for world in worlds.values():
            settings.plan.check(world.federation.seen)
            settings.plan.check_sites(world.federation.sites, settings.data)
            world.federation.check_disjoint()
            check_test_samples(world.federation, settings.data)
            assert world.model.layout.size  # the model is built once here, so that a wrong spec is refused before anything is written
            check_fit(world, settings.plan.local.batch_size, augments=settings.plan.local.augment is not None)
        return cls(
            settings,
            problems={draw: world.problem for draw, world in worlds.items()},
            # groups are compared with the true ones of the last round
            rosters={draw: make_roster_table(world.federation.at(settings.plan.rounds)) for draw, world in worlds.items()},
            methods=made,
            worlds=worlds,
            changing=settings.plan.sample_size is not None or any(world.federation.later for world in worlds.values()),
            setup_seconds=perf_counter() - began,
            notices=tuple(dict.fromkeys(told for made in federations.values() if (told := describe_scale_problem(made)) is not None)),
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
        """Run all lanes to the last round. With `out`, everything is on disk as it goes, and `resume` goes on where that ended.

        A `budget` of time ends the run early and cleanly: a wave that would not fit is not begun, and one that outgrows it ends with a
        whole segment, so that what is written holds the same rounds of all methods for every seed.
        """
        execution, watchers = execution or Execution(), list(callbacks)
        check_speeds(self.settings.plan, self.problems.values())
        validation = all(problem.validation for problem in self.problems.values())
        drifts = any(world.federation.later for world in self.worlds.values()) if self.worlds else self.changing
        check_early_stopping(self.settings.plan, self.settings.data, validation=validation, changing=drifts)
        for watcher in watchers:
            for sentence in self.notices:
                watcher.on_notice(sentence)
        if out is None:
            return self._carry_out(None, execution.settled(), engine, watchers, budget)
        opened = StudyOpener(out, self.settings, self.rosters, self.worlds).open(execution, resume)
        with opened.writer:
            for watcher in watchers:
                for sentence in opened.told:
                    watcher.on_notice(sentence)
            return self._carry_out(opened, opened.execution, engine, watchers, budget)

    def _carry_out(
        self,
        opened: OpenedStudy | None,
        execution: Execution,
        engine: Engine | None,
        watchers: Sequence[Callback],
        budget: TimeLimit | None,
    ) -> Result:
        began = perf_counter()
        lanes = self.lanes()
        check_memory(lanes)
        for lane in lanes:
            if opened is not None and lane.key in opened.lanes:
                stood = opened.lanes[lane.key]
                lane.resume_from(stood.end, stood.state, stood.pending)
        if opened is not None and opened.lanes and self.settings.plan.patience is not None:
            _replay_validation_scores(lanes, Evidence.open(opened.writer.folder))
        keeper = Recorder(self, opened.writer if opened is not None else None)
        checkpoints = CheckpointSchedule(execution, self.settings.plan.rounds, len(lanes))
        elsewhere = engine is None and execution.is_distributed
        with nullcontext(engine) if engine is not None or elsewhere else self.engine(execution, keeper.routes) as carrier:
            setup = self.setup_seconds + perf_counter() - began
            for watcher in watchers:
                watcher.on_start(self.settings, len(lanes) * (self.settings.plan.rounds + 1), sum(lane.round_ + 1 for lane in lanes))
            began = perf_counter()
            try:
                if carrier is None:
                    run_on_workers(self, lanes, execution, checkpoints, keeper, watchers, budget)
                else:
                    self._run_waves(lanes, execution, carrier, checkpoints, keeper, watchers, budget)
            finally:
                for watcher in watchers:
                    watcher.on_end()
        carried = CompletedRun(self, lanes) if self.worlds else None  # of a real federation the models are with the sites
        return Result(keeper.evidence(lanes), perf_counter() - began, setup, carried)

    def lanes(self) -> list[Lane]:
        """All lanes, at their beginning."""
        methods = list(zip(self.settings.methods, self.methods, strict=True))
        # who was right on the same sample is for whoever holds the data: in a simulation everybody does
        few = all(world.federation.test.sizes.sum() <= MAX_KEPT_ANSWERS for world in self.worlds.values())
        options = {"own_seeds": self.settings.own_seeds, "keeps_answers": bool(self.worlds) and few, "real": not self.worlds}
        return make_lanes(methods, self.settings.seeds, self.problems, self.settings.plan, **options)

    def _run_waves(
        self,
        lanes: Sequence[Lane],
        execution: Execution,
        engine: Engine,
        checkpoints: CheckpointSchedule,
        keeper: Recorder,
        watchers: Sequence[Callback],
        budget: TimeLimit | None,
    ) -> None:
        """Wave after wave, each segment by segment. A segment is written when all lanes of its wave have passed it."""

        def watch(lane: Lane, record: RoundRecord) -> None:
            for watcher in watchers:
                watcher.on_round(lane, record)

        assert execution.memory is not None  # settled
        pieces = list(split_into_waves(lanes, int(execution.memory * GIB), execution.seeds_per_wave, whole_seeds=not execution.is_on_gpu))
        if execution.is_on_gpu and (sentence := describe_spill(pieces, get_resident_memory(execution.device))) is not None:
            for watcher in watchers:
                watcher.on_notice(sentence)
        for wave in pieces:
            if is_wave_finished(wave, self.settings.plan.rounds):
                continue
            if budget is not None and not budget.begin_wave():
                break
            for done in run_segments(wave, engine, checkpoints, watch, partial(keeper.announce, checkpoints, wave, watchers)):
                keeper.keep(wave, done.before, done.records, done.routes)
                if budget is not None and budget.over:
                    break

    def engine(self, execution: Execution, pinned: Mapping[str, str] | None = None) -> Engine:
        """The engine, on the routes of the study that is resumed, with everything compiled that can be compiled ahead."""
        how = (execution.threads, pinned, execution.precision, execution.microbatch)
        engine = make_engine(self.worlds, execution.engine, execution.device, *how, holds=True)
        engine.prepare(self.settings.plan.local)
        return engine


def _replay_validation_scores(lanes: Sequence[Lane], evidence: Evidence) -> None:
    """Let lanes that go on know the validation scores that they had, by which they may stop early."""
    by_key = {lane.key: lane for lane in lanes}
    rounds = evidence.frame("rounds", ["validation"]).sort_values("round", kind="stable")
    for draw, method, seed, round_, score in rounds[["draw", "method", "seed", "round", "validation"]].itertuples(index=False):
        if evidence.settings.plan.is_evaluated_anyway(round_):
            by_key[LaneKey(int(draw), str(method), int(seed))].patience.seen(int(round_), float(score))


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

    `model` is a spec, a module (every seed begins with its numbers), or a class or function that makes one. `loss` is a function of your
    own, or the name of one; the task's usual loss unless given. `unseen` is a share of clients that take no part in training and are scored
    apart.
    `settings` are those of `Plan` and `Local` by their names: rounds, cohort, epochs, batch_size, lr and the others. `plan` says all of
    them at once, `local` those of local training; what is said twice is refused. Where no lane reaches the end, `NothingFinishedError`
    says why and carries the result that there is. `callbacks` watch it; without any, a notebook shows how far it is. `workers` processes
    of this machine, or the machines of a `ray` cluster ("auto" or its address), carry out waves side by side: the findings are the same.

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
    if not watchers:  # who are told otherwise
        for sentence in ready.notices:
            warnings.warn(sentence, stacklevel=2)
    carried = override_workers(execution or Execution(), workers=workers, ray=ray)
    return check_finished(ready.run(out=Path(out) if out else None, resume=resume, execution=carried, callbacks=watchers))
