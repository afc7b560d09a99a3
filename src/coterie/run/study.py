"""A study: draws x methods x seeds. Its folder is created or resumed, and its lanes are run wave by wave and recorded."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from coterie._util.errors import UserError
from coterie._util.files import FolderLock
from coterie._util.json_io import format_json, read_json, read_json_object
from coterie.analysis.roles import check_groups, collect_facts
from coterie.core.local import Local
from coterie.core.method import Method, Problem
from coterie.core.model import MakeModule
from coterie.core.plan import Plan, parse_attack
from coterie.data.catalogue import load
from coterie.data.checks import describe_scale_problem
from coterie.data.client_scenarios import add_unseen, check_test_samples
from coterie.data.content import find_differences, hash_contents
from coterie.data.federation import Federation
from coterie.engines.batched import make_engine
from coterie.engines.engine import Engine
from coterie.engines.loss import Loss, cross_entropy, get_loss, make_per_sample
from coterie.engines.world import World, check_fit
from coterie.evidence.folder import get_roster_path, is_free, read_roster
from coterie.evidence.manifest import is_study, repair_routes, repair_study
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey, RoundRecord
from coterie.evidence.restore import RestoredLane, restore
from coterie.evidence.settings import Settings, find_obstacles
from coterie.evidence.tables import make_roster_table, make_tables
from coterie.evidence.writer import Writer, finish_growing, grow
from coterie.methods.catalogue import build
from coterie.models.catalogue import GivenModel, build_model, resolve_model
from coterie.run.async_rounds import check_async_methods, check_speeds
from coterie.run.callbacks import Callback, make_watchers, notify
from coterie.run.driver import run_waves
from coterie.run.environment import describe_environment, find_changes
from coterie.run.execution import Execution, make_plan, override_workers
from coterie.run.lanes import Lane, check_early_stopping, make_lanes
from coterie.run.method_sets import ChosenMethods, fit_to_data
from coterie.run.recorder import CheckpointSchedule, Recorder
from coterie.run.result import CompletedRun, Result, check_finished
from coterie.run.waves import TimeLimit, check_memory
from coterie.run.workers.scheduler import run_on_workers

LOSS = "loss"  # in environment.json


@dataclass(frozen=True)
class OpenedStudy:
    """A study's folder, locked for this process."""

    writer: Writer
    execution: Execution  # as the study was started
    lanes: Mapping[LaneKey, RestoredLane]  # those that have started
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyOpener:
    """A study and the folder it is written to."""

    out: Path
    settings: Settings
    rosters: Mapping[int, pa.Table]
    worlds: Mapping[int, World]  # none in a real federation: the server has no data

    def open(self, execution: Execution, resume: bool) -> OpenedStudy:
        """Create the folder, or resume the study in it with its stored execution settings."""
        resolved = execution.resolve()
        data = {str(draw): hash_contents(world.federation) for draw, world in self.worlds.items()}
        extras = {"execution": asdict(resolved), "environment": describe_environment() | {LOSS: self._loss()}, "data": data}
        if resume and is_study(self.out):
            hold = FolderLock(self.out)
            try:
                return self._resume(hold, execution, extras)
            except BaseException:
                hold.close()
                raise
        if resume and not is_free(self.out, "settings.json"):
            raise UserError(f"{self.out} holds no study to resume: name the folder that --out made, or omit --resume.")
        return OpenedStudy(Writer.create(self.out, self.settings, extras, self.rosters), resolved, {})

    def _resume(self, hold: FolderLock, execution: Execution, extras: Mapping[str, Any]) -> OpenedStudy:
        out = self.out
        finish_growing(out)
        texts = {"settings": self.settings.as_json(), **extras}
        notices = repair_study(out, {f"{name}.json": format_json(tree) for name, tree in texts.items()})
        stored = Settings.from_json(read_json(out / "settings.json"))
        if other := find_obstacles(stored, self.settings):
            raise UserError(
                f"{out} holds another study (it differs in {'; '.join(other)}): choose another --out. A study can get more methods, seeds, "
                "draws or rounds: name those that it has and those that come."
            )
        self._check_data(extras["data"])
        self._check_loss(read_json_object(out / "environment.json").get(LOSS))
        lanes, lost = restore(out)
        notices += lost + repair_routes(out)
        if now := find_changes(read_json_object(out / "environment.json"), extras["environment"]):
            notices.append(f"The study continues under {', '.join(now)}: losses may differ in their last bits from those of one run.")
        if grows := stored.differences(self.settings):
            grow(out, self.settings, extras["data"], self.rosters)
        writer = Writer(out, hold)
        notices += writer.rosters(self.rosters)  # clients may have joined
        for sentence in [*([f"the study grows in {', '.join(grows)}"] if grows else []), *notices]:
            writer.log(sentence)
        kept = Execution.read(out / "execution.json").override(execution).resolve()
        return OpenedStudy(writer, kept, lanes, tuple(notices))

    def _loss(self) -> str:
        """The name of the loss: a user's own loss is given in Python and is in no settings."""
        losses = {world.loss for world in self.worlds.values()} or {cross_entropy}
        return ", ".join(sorted(getattr(loss, "__name__", type(loss).__name__) for loss in losses))

    def _check_loss(self, before: object) -> None:
        """Refuse another loss than the study began with."""
        if before != self._loss():
            raise UserError(
                f"{self.out} was started with the loss {before!r}, not {self._loss()!r}: resume in Python with the same, as in "
                "study(..., loss=..., resume=True)."
            )

    def _check_data(self, data: Mapping[str, Mapping[str, str]]) -> None:
        """Refuse other data than those the study began with."""
        path = self.out / "data.json"
        before = read_json_object(path) if path.exists() else {}
        other = [name for draw in before for name in find_differences(before[draw], data[draw])]
        if not before:  # the clients are all that is known of a real federation
            other = ["clients" for draw, roster in self.rosters.items() if not self._has_known_clients(draw, roster)]
        if other:
            what = f"{', '.join(dict.fromkeys(other))} of {self.settings.data!r} differ"
            raise UserError(
                f"The data of {self.out} are not those it was started with ({what}): resume with those, or start over in another --out."
            )

    def _has_known_clients(self, draw: int, roster: pa.Table) -> bool:
        """Whether a roster starts with the clients of the stored one. In a real federation clients may join."""
        try:
            before = read_roster(get_roster_path(self.out, draw))
        except UserError:  # it is written again
            return True
        return bool(roster["id"].to_pylist()[: len(before)] == before["id"].to_pylist())


MAX_KEPT_ANSWERS = 1_000_000  # test samples up to which the last round's answers are kept one by one: an eighth of a megabyte a lane


@dataclass(frozen=True)
class Study:
    """A study ready to run: the server's view of each draw, and the methods. `study` makes and runs one in a single call.

    A simulation also has worlds, from which its engine is made; a real federation brings its own engine.

    Example:
        >>> from coterie.evidence.settings import Settings
        >>> made = ct.Study.prepare(Settings(methods=("fedavg",), data="heart"))  # doctest: +SKIP
        >>> result = made.run(out=Path("runs/heart"))  # doctest: +SKIP
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
        is_scored: bool = True,
    ) -> "Study":
        """Build what the settings name, and refuse what cannot work. Objects may replace specs: federations by draw.

        A study that is not scored, but run for its models, needs no test samples.
        """
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
            if is_scored:
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

        Returns:
            The result, also where the time limit ended the run early.
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
        methods: Methods, their specs, or sets of them (``"@papers"``), of which those that cannot run are left out.
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

    Returns:
        The result: tables, curves and the evidence.

    Raises:
        NothingFinishedError: If no lane reaches the end; it has the reasons and the partial result.

    Example:
        >>> import coterie as ct
        >>> result = ct.study([ct.FedAvg(), ct.FedProx(mu=1)], data="synthetic(0,0,clients=10)", rounds=2, seeds=range(2))
        >>> list(result.table().index)
        ['fedavg', 'fedprox']
    """
    settings |= {"loss": loss} if isinstance(loss, str) else {}
    own_loss = None if isinstance(loss, str) else loss
    data = data if unseen is None else add_unseen(data, unseen)
    federation = data if isinstance(data, Federation) else None
    named, make = resolve_model(model)
    plan, folder = make_plan(settings, plan, local), Path(data_dir) if data_dir else None
    first = federation.data_seed if federation is not None else data_seed
    chosen = fit_to_data(ChosenMethods.resolve(methods), data, first, plan, named, data_dir=folder, make=make)
    whole = Settings(
        methods=chosen.labels,
        data=federation.name if federation is not None else str(data),
        model=named,
        seeds=tuple(seeds),
        draws=(first,),
        plan=plan,
    )
    watchers = make_watchers(callbacks)
    ready = Study.prepare(whole, data_dir=folder, federation=federation, methods=chosen.methods, loss=own_loss, make=make)
    ready = replace(ready, notices=(*chosen.notices, *ready.notices))
    if not watchers:  # which show notices
        for sentence in ready.notices:
            warnings.warn(sentence, stacklevel=2)
    execution = override_workers(execution or Execution(), workers=workers, ray=ray)
    return check_finished(ready.run(out=Path(out) if out else None, resume=resume, execution=execution, callbacks=watchers))
