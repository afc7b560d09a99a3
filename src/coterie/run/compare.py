"""`compare`: methods and the controls that show where a gain comes from, on one or several federations, within a time budget."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import DesignWarning, UserError
from coterie._util.files import FolderLock
from coterie._util.json_io import format_json, read_json, read_json_object
from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.draws import DecidingTest
from coterie.analysis.metrics import MetricFunction, get_metric
from coterie.analysis.roles import assign_roles, check_groups, collect_facts, get_assignment, make_variant
from coterie.analysis.verdict_rules import choose_test, compute_advised_repetitions, describe_design
from coterie.core.local import Local
from coterie.core.method import Method
from coterie.core.model import MakeModule
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.checks import check_before_use
from coterie.data.client_scenarios import add_unseen
from coterie.data.federation import Federation
from coterie.engines.world import World
from coterie.evidence.folder import create_folder
from coterie.evidence.manifest import REQUEST as NAME
from coterie.evidence.manifest import SEALS, repair_request, replace_sealed, seal, write_sealed
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings, list_removed
from coterie.methods.catalogue import get_spec
from coterie.methods.controls import Assign, bin_by_size
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.models.catalogue import GivenModel, build_model, resolve_model
from coterie.run.callbacks import Callback, make_watchers, notify
from coterie.run.comparison_request import DEFAULT_FINETUNE, ComparisonRequest, Design, DrawLoader, find_study_file, make_design
from coterie.run.execution import Execution, make_plan
from coterie.run.method_sets import ChosenMethods
from coterie.run.result import check_comparison_finished
from coterie.run.study import Study
from coterie.run.tuning import (
    RATE_GRID,
    LabelledMethod,
    add_validation,
    choose_rates,
    extend_grids,
    make_grid,
    parse_stored_rates,
    set_rate,
)
from coterie.run.waves import TimeBudget

if TYPE_CHECKING:
    from coterie.run.study_file import FileStudy


def add_controls(
    entries: Sequence[LabelledMethod], known_groups: bool, finetune: int, *, sizes_differ: bool = True
) -> list[LabelledMethod]:
    """The methods with the controls that isolate a gain from similarity: baselines first, then each method with its own controls.

    A method that groups gets random groups of the same sizes; where clients differ in size, random groups among clients of similar size,
    which keep the weights; and, where the true groups are known, those. Nothing is added twice.
    """
    baselines: list[Method[Any]] = [FedAvg(), FedAvg(weighting="uniform"), LocalOnly(), FineTuned(method=FedAvg(), epochs=finetune)]
    wanted: list[LabelledMethod] = [(get_spec(method), method) for method in baselines]
    for label, method in entries:
        wanted.append((label, method))
        if get_assignment(method) == "similar":
            there: dict[Assign, bool] = {"random": True, "matched": sizes_differ, "oracle": known_groups}
            ways = [way for way, known in there.items() if known]
            wanted += [(get_spec(control), control) for control in (make_variant(method, way) for way in ways)]
    own = {method: label for label, method in entries}  # a user's spelling wins
    return [(own.get(method, label), method) for method, label in {method: label for label, method in wanted}.items()]


FIRST_TUNING_SEED = 1_000_000_000
BUDGET_WAVES = 7  # with a budget: fewer would waste a large unfinished wave, more would leave engines idle


def compare(
    methods: "Sequence[Method[Any] | str] | Method[Any] | str | FileStudy",
    *,
    out: Path | str | None = None,
    data: Sequence[str | Federation] | str | Federation | None = None,
    model: GivenModel | None = None,
    budget: float | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    callbacks: Iterable[Callback] | None = None,
    draws: int | None = None,
    seeds: Iterable[int] | None = None,
    data_seed: int | None = None,
    unseen: float | None = None,
    plan: Plan | None = None,
    local: Local | None = None,
    metric: str | MetricFunction | None = None,
    loss: str | None = None,
    trust: bool = False,
    accept: bool = False,
    tune: bool | Iterable[float] = False,
    stages: bool = False,
    **settings: Any,
) -> Comparison:
    """Run methods with their controls on each federation, into one folder each below `out`, and compare them.

    Args:
        methods: Methods, their specs, sets of them (``"@papers"``), or a study file (``"study.toml"``), whose settings the other arguments
            override. What a set has that cannot run on the data is left out, and a warning says why.
        out: The folder to write to.
        data: Federations, or their specs.
        model: A spec, a module, or a class or function that makes one.
        budget: Minutes after which the run ends, with complete pairs.
        resume: Whether to resume the comparison in the folder.
        data_dir: The folder of data sets.
        execution: Engine, device, threads and workers.
        callbacks: Watch the run.
        draws: The number of draws of the data. Default: 10 where the data can be redrawn.
        seeds: The seeds of training in each draw.
        data_seed: The first draw.
        unseen: The share of clients that take no part and are scored apart.
        plan: All settings of the plan at once.
        local: The settings of local training.
        metric: What is compared: a name, or a function of `Counts`.
        loss: The name of a loss. Default: the task's own.
        trust: Whether code that a study file names may run.
        accept: Whether data with severe faults (`check_data`) are accepted.
        tune: Whether to tune the learning rate of every method on validation parts, over the default grid or these rates.
        stages: Whether every method is also judged after its clients have trained for `finetune` epochs more.
        settings: Those of `ComparisonRequest`, such as `tuning_seeds`, and those of `Plan` and `Local`, by name.

    Returns:
        The comparison: findings, verdict and tables.

    Raises:
        NothingFinishedError: If no run reaches the end; it has the reasons and the partial comparison.

    Example:
        >>> comparison = ct.compare(["fedsim", "ifca"], data="heart", out="runs/heart")  # doctest: +SKIP
    """
    file = find_study_file(methods, trust, execution is not None)
    stored = None if file is None else file.settings
    place = out if out is not None or file is None else file.out
    if place is None:
        raise UserError("A comparison needs a folder for its evidence: give --out.")
    folder = Path(place)
    data = (stored.data if stored is not None else "digits/rotated") if data is None else data
    federations = (data,) if isinstance(data, (str, Federation)) else tuple(data)
    if not federations:
        raise UserError("A comparison needs data: give --data, once for each federation.")
    seeds = None if seeds is None else tuple(seeds)
    if seeds is None and file is not None and "seeds" in file.given:  # else the default of a file is that of a single study
        seeds = file.settings.seeds
    first = data_seed if data_seed is not None else 0 if stored is None else stored.draws[0]
    named, make = resolve_model(model if model is not None else "mclr" if stored is None else stored.model)
    own = {f.name: settings.pop(f.name) for f in fields(ComparisonRequest) if f.name in settings}
    settings |= {} if loss is None else {"loss": loss}
    settings = own | {"plan": make_plan(settings, plan, local, None if stored is None else stored.plan), "model": named}
    named_methods: Any = methods if file is None else file.settings.methods
    chosen = ChosenMethods.resolve(named_methods, () if file is None else file.optional)
    given = federations if unseen is None else tuple(add_unseen(each, unseen) for each in federations)
    rates = (RATE_GRID if tune else ()) if isinstance(tune, bool) else tuple(tune)
    settings |= {"rates": tuple(settings.get("rates", ())) or rates}
    if settings["rates"]:
        given = tuple(each if isinstance(each, Federation) else add_validation(each) for each in given)
    specs = tuple(each.name if isinstance(each, Federation) else each for each in given)
    sources = [make_draws(each, data_dir) for each in given]
    designs = tuple(make_design(spec, source, first=first, draws=draws, seeds=seeds) for spec, source in zip(specs, sources, strict=True))
    if chosen.optional:
        firsts = [source(design.draws[0]) for source, design in zip(sources, designs, strict=True)]
        chosen = chosen.fit([World.from_spec(each, named, make=make).problem for each in firsts], settings["plan"])
    chosen = chosen.add_stages(settings.get("finetune", DEFAULT_FINETUNE)) if stages else chosen
    entries = chosen.entries
    compared = metric if metric is None or isinstance(metric, str) else f"{metric.__module__}:{metric.__qualname__}"
    labels = tuple(label for label, _ in entries)
    request = ComparisonRequest(methods=labels, data=specs, designs=designs, metric=compared, **settings)
    execution = execution or (Execution() if file is None else file.execution)
    watchers = tuple(make_watchers(callbacks))
    notify(watchers, *chosen.notices)
    for sentence in chosen.notices if not watchers else ():
        warnings.warn(sentence, DesignWarning, stacklevel=2)
    if not (resume and (folder / NAME).is_file()):  # a resumed one was checked, or accepted, at its start
        for source, design in zip(sources, designs, strict=True):
            notify(watchers, *check_before_use(source(design.draws[0]), accept=accept))
    return check_comparison_finished(run_request(request, entries, sources, folder, resume, budget, execution, watchers, make, metric))


def run_request(
    request: ComparisonRequest,
    entries: Sequence[LabelledMethod],
    sources: Sequence[DrawLoader],
    out: Path,
    resume: bool,
    budget: float | None,
    execution: Execution,
    callbacks: tuple[Callback, ...],
    make: MakeModule = build_model,
    metric: str | MetricFunction | None = None,
) -> Comparison:
    """Run a request in a folder, with the methods by label and the draws of each federation."""
    for source, design in zip(sources, request.designs, strict=True):
        first = source(design.draws[0])
        request.plan.check(first.participants)
        clients = first.at_round(request.plan.rounds).participants
        check_groups([label for label, _ in entries], [method for _, method in entries], clients, request.plan.cohort)
        if first.participants < 2:
            raise UserError("A comparison of methods needs two clients or more: with one there is no other client to learn with.")
        get_metric(metric or request.metric, first.task.name, first.task.labels(len(first.classes)))  # refuses one that is not of this task
        if request.rates:
            source(design.draws[0]).part("validation")  # refuses one that has none
    if resume and (out / NAME).is_file():
        with suppress(UserError):  # a damaged request is reported when the folder is opened
            request = replace(request, extensions=int(read_json_object(out / NAME).get("extensions", request.extensions)))
    runs = [
        _FederationRun(request, *one, out, execution, callbacks, make)
        for one in zip(request.designs, sources, request.folders, strict=True)
    ]
    for run in runs:
        run.check_tuning()
    request = replace(request, tests=tuple(run.choose_test(entries) for run in runs))
    notices = list(dict.fromkeys(notice for run in runs if (notice := run.describe_shortfall(entries)) is not None))
    notify(callbacks, *notices)
    for sentence in notices if not callbacks else ():
        warnings.warn(sentence, DesignWarning, stacklevel=3)
    with _open_folder(out, request, resume, callbacks, {run.name: run for run in runs}, entries):
        _run_federations(runs, entries, budget)
        return open_comparison(out, metric=metric or request.metric)


def make_draws(data: str | Federation, data_dir: Path | None) -> DrawLoader:
    """The draws of a federation; an object that cannot be redrawn is the same in every draw."""
    if isinstance(data, Federation):
        return DrawLoader(lambda draw: data if data.redraw is None or draw == data.data_seed else data.redraw(draw))
    return DrawLoader(partial(load, data, data_dir=data_dir))


def _run_federations(runs: Sequence["_FederationRun"], entries: Sequence[LabelledMethod], budget: float | None) -> None:
    """Run the federations one after another, each in its share of the time."""
    clock = TimeBudget(60 * budget) if budget is not None else None
    for i, run in enumerate(runs):
        if clock is not None and clock.over:
            break
        share = clock.share(len(runs) - i) if clock is not None else None
        if clock is not None and run.execution.seeds_per_wave is None:
            run = replace(run, execution=replace(run.execution, seeds_per_wave=max(run.design.runs // BUDGET_WAVES, 1)))
        replace(run, budget=share).run(entries)


@dataclass(frozen=True)
class _FederationRun:
    """One federation of a comparison."""

    request: ComparisonRequest
    design: Design
    source: DrawLoader
    name: str
    out: Path
    execution: Execution
    callbacks: tuple[Callback, ...]
    make: MakeModule = build_model  # of a model that is an object
    budget: TimeBudget | None = None

    def run(self, entries: Sequence[LabelledMethod]) -> None:
        entries = self.add_controls(entries)
        if self.request.rates:
            entries = self._tune_rates(entries)
        self._study(entries, self.design, self.out / self.name)

    def add_controls(self, entries: Sequence[LabelledMethod]) -> Sequence[LabelledMethod]:
        """The methods with their controls, where those are wanted."""
        if not self.request.controls:
            return entries
        federation = self.source(self.design.draws[0])
        differ = bool(bin_by_size(federation.train.sizes[: federation.participants]).any())
        return add_controls(entries, federation.groups is not None, self.request.finetune, sizes_differ=differ)

    def count_tested(self, entries: Sequence[LabelledMethod]) -> int:
        """The number of methods under test."""
        labels, methods = zip(*self.add_controls(entries), strict=True)
        return len(assign_roles(labels, facts=collect_facts(labels, methods)).methods)

    def choose_test(self, entries: Sequence[LabelledMethod]) -> DecidingTest | None:
        """The test that decides in this design."""
        return choose_test(self.design.repetitions, self.count_tested(entries))

    def describe_shortfall(self, entries: Sequence[LabelledMethod]) -> str | None:
        """What this design cannot show, and what to choose instead."""
        tests, design = self.count_tested(entries), self.design
        enough = compute_advised_repetitions(tests)
        option = f"--draws {enough}, in Python draws={enough}"
        if len(design.draws) == 1:
            option = f"--seeds 0-{enough - 1}, in Python seeds=range({enough})"
        notice = describe_design(design.repetitions, "draw" if len(design.draws) > 1 else "seed", tests, option)
        return notice if notice is None or len(self.request.designs) == 1 else f"{self.name}: {notice}"

    def check_tuning(self) -> None:
        """Refuse to compare seeds by which the learning rates were chosen."""
        both = sorted({*self._tuning_seeds} & {*self.design.seeds}) if self.request.rates else []
        if both:
            raise UserError(f"The seeds {', '.join(map(str, both))} are those that learning rates are tuned with: compare others.")

    @property
    def _tuning_seeds(self) -> tuple[int, ...]:
        """Seeds of their own range, so that the seeds compared can grow."""
        return tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.request.tuning_seeds))

    def _tune_rates(self, entries: Sequence[LabelledMethod]) -> list[LabelledMethod]:
        """Every method at its best rate on validation parts of the first draw."""
        folder = self.out / "tuning" / self.name
        design, grid = Design(self.design.draws[:1], self._tuning_seeds), self.request.rates
        stored: tuple[str, ...] = ()
        with suppress(UserError):  # there are none yet, or they are damaged and written again
            stored = Settings.from_json(read_json(folder / "settings.json")).methods
        rates = {label: sorted({*map(float, grid), *parse_stored_rates(stored, label)}) for label, _ in entries}
        evidence = self._study(make_grid(entries, rates), design, folder)
        while wider := extend_grids(evidence, entries, rates, grid, self.request.extensions):
            notify(
                self.callbacks,
                *(f"{label}: its best rate is the edge of the grid, so {rate:g} is tested, too." for label, rate in wider.items()),
            )
            rates = {label: sorted({*own, *([wider[label]] if label in wider else [])}) for label, own in rates.items()}
            evidence = self._study(make_grid(entries, rates), design, folder)
        found = choose_rates(evidence, entries, rates)
        notify(self.callbacks, *write_sealed(self.out, f"tuning/{self.name}.json", format_json(found)))
        return [set_rate(entry, found[entry[0]].chosen) for entry in entries]

    def _study(self, entries: Sequence[LabelledMethod], design: Design, folder: Path) -> Evidence:
        request = self.request
        federations = {draw: self.source(draw) for draw in design.draws}
        settings = Settings(
            methods=tuple(label for label, _ in entries),
            data=federations[design.draws[0]].name,
            model=request.model,
            seeds=design.seeds,
            draws=design.draws,
            own_seeds=True,
            plan=request.plan,
        )
        study = Study.prepare(settings, federation=federations, methods=[method for _, method in entries], make=self.make)
        budget = self.budget.share(1) if self.budget is not None else None  # waves of the grid do not predict those of the study
        watchers = [_SealSettings(self.out, f"{folder.relative_to(self.out).as_posix()}/settings.json"), *self.callbacks]
        return study.run(out=folder, resume=True, execution=self.execution, callbacks=watchers, budget=budget).evidence


@dataclass(frozen=True)
class _SealSettings(Callback):
    """Seals a study's settings once its folder is open: it may have started, or grown."""

    out: Path
    name: str

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        seal(self.out, self.name)


def _open_folder(
    out: Path,
    request: ComparisonRequest,
    resume: bool,
    callbacks: Sequence[Callback],
    runs: Mapping[str, _FederationRun],
    entries: Sequence[LabelledMethod],
) -> FolderLock:
    """Create a folder, or check that the one there is this comparison or a part of it; it is locked for this process."""
    path, wanted = out / NAME, format_json(request.as_json())
    if not resume or not (path.is_file() or (out / SEALS).is_file()):
        return create_folder(out, NAME, lambda draft: write_sealed(draft, NAME, wanted), "comparison")
    hold = FolderLock(out)
    try:
        notify(callbacks, *repair_request(out, wanted))
        stored = ComparisonRequest.from_json(read_json_object(path), path)
        other = stored.obstacles(request)
        if not other:
            kept = [entry for entry in entries if entry[0] in stored.methods]
            other = [label for name in stored.folders for label in _find_renamed_controls(runs[name], kept, entries)]
        if other:
            raise UserError(
                f"{out} holds another comparison (it differs in {'; '.join(other)}): choose another --out. A comparison can get more "
                "methods, federations, draws, seeds or rounds: name those that it has and those that come."
            )
        if format_json(stored.as_json()) != wanted:
            replace_sealed(out, NAME, wanted)
    except BaseException:
        hold.close()
        raise
    return hold


def _find_renamed_controls(run: _FederationRun, before: Sequence[LabelledMethod], now: Sequence[LabelledMethod]) -> list[str]:
    """Controls whose names would change by the spelling of a new method: runs under the old name would be lost."""
    return list_removed("methods", *([label for label, _ in run.add_controls(some)] for some in (before, now)))
