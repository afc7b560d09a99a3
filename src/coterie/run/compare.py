"""`compare`: methods beside the controls that say where a gain comes from, on one or several federations, resumable and on time."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.analysis.choosing import ValueOf, metric_of
from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.gaps import DecidingTest
from coterie.analysis.roles import check_groups, own_facts, roles_of
from coterie.analysis.rules import deciding_test, describe_design, repetitions_advised
from coterie.core.errors import DesignWarning, UserError
from coterie.core.json_object import read_object
from coterie.core.local import Local
from coterie.core.locks import Hold
from coterie.core.method import Method
from coterie.core.model import MakeModule
from coterie.core.plain import json_text, read_json
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.checks import check_before
from coterie.data.federation import Federation
from coterie.data.unseen import leaving_out
from coterie.evidence.creation import create_folder
from coterie.evidence.growth import left_out
from coterie.evidence.reader import Evidence
from coterie.evidence.seals import REQUEST as NAME
from coterie.evidence.seals import SEALS, mend_request, seal, write_grown, write_sealed
from coterie.evidence.settings import Settings
from coterie.grouping.controls import like_sized
from coterie.models.catalogue import build_model
from coterie.models.given import GivenModel, given_model
from coterie.run.budget import Budget
from coterie.run.callbacks import Callback
from coterie.run.chosen import Chosen, compared_file, entries_of
from coterie.run.controlled import with_controls
from coterie.run.designs import Design, Draws, design_of
from coterie.run.execution import Execution
from coterie.run.finishing import compared
from coterie.run.options import plan_of
from coterie.run.progress import watchers_of
from coterie.run.request import Request
from coterie.run.study import Study
from coterie.run.tuning import GRID, Labelled, at_rate, choose_rates, grid_of, stored_rates, wider_grids, with_validation

if TYPE_CHECKING:
    from coterie.run.study_file import FileStudy  # which needs pydantic

FIRST_TUNING_SEED = 1_000_000_000
WAVES = 7  # with a budget, seeds run in about so many waves: fewer would waste a large unfinished one, more would leave engines idle


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
    metric: str | ValueOf | None = None,
    loss: str | None = None,
    trust: bool = False,
    accept: bool = False,
    tune: bool | Iterable[float] = False,
    **settings: Any,
) -> Comparison:
    """Run methods with their controls on each federation, into one folder each below `out`, and compare them.

    In place of methods a study file may stand (``"study.toml"``): what is said beside it wins, code that it names needs `trust`. `model` is
    a spec, a module, or a class or function that makes one. `settings` are those of `Request`, and those of `Plan` and `Local` by their
    names, as for `study`. `draws` and `seeds` make the design (see `design_of`); draws begin at `data_seed`. `unseen` is a share of clients
    that take no part and are scored apart. `metric` is what is compared: a name, or a function of `Counts`. `budget` is in minutes: the run
    ends on time with complete pairs, and `resume` goes on. `tune` gives every method the learning rate that does best on clients'
    validation parts, of the usual grid or of the rates given; `tuning_seeds` and `extensions` are its settings. Data with severe faults
    (`check_data`) are refused unless `accept`. Where no run reaches the end, `NothingFinishedError` says why and carries the comparison
    that there is.
    """
    file = compared_file(methods, trust, execution is not None)
    chosen = Chosen.of(file, data=data, model=model, seeds=seeds, data_seed=data_seed, out=out)
    named, make = given_model(chosen.model)
    own = {f.name: settings.pop(f.name) for f in fields(Request) if f.name in settings}
    settings |= {} if loss is None else {"loss": loss}
    settings = own | {"plan": plan_of(settings, plan, local, None if file is None else file.settings.plan), "model": named}
    entries = entries_of(methods if file is None else file.settings.methods)
    given = chosen.data if unseen is None else tuple(leaving_out(each, unseen) for each in chosen.data)
    rates = (GRID if tune else ()) if isinstance(tune, bool) else tuple(tune)
    settings |= {"rates": tuple(settings.get("rates", ())) or rates}
    if settings["rates"]:
        given = tuple(each if isinstance(each, Federation) else with_validation(each) for each in given)
    specs = tuple(each.name if isinstance(each, Federation) else each for each in given)
    sources = [draws_of(each, data_dir) for each in given]
    designs = tuple(
        design_of(spec, source, first=chosen.data_seed, draws=draws, seeds=chosen.seeds)
        for spec, source in zip(specs, sources, strict=True)
    )
    request = Request(methods=tuple(label for label, _ in entries), data=specs, designs=designs, metric=_spelt(metric), **settings)
    carried = execution or (Execution() if file is None else file.execution)
    watchers = tuple(watchers_of(callbacks))
    if not (resume and (chosen.out / NAME).is_file()):  # what has begun was checked, or accepted, then
        for source, design in zip(sources, designs, strict=True):
            _tell(watchers, check_before(source(design.draws[0]), accept=accept))
    return compared(carried_out(request, entries, sources, chosen.out, resume, budget, carried, watchers, make, metric))


def carried_out(
    request: Request,
    entries: Sequence[Labelled],
    sources: Sequence[Draws],
    out: Path,
    resume: bool,
    budget: float | None,
    execution: Execution,
    callbacks: tuple[Callback, ...],
    make: MakeModule = build_model,
    metric: str | ValueOf | None = None,
) -> Comparison:
    """A request, carried out in a folder; the methods by label, the draws of each federation."""
    for source, design in zip(sources, request.designs, strict=True):
        first = source(design.draws[0])
        request.plan.check(first.seen)
        clients = first.at(request.plan.rounds).seen
        check_groups([label for label, _ in entries], [method for _, method in entries], clients, request.plan.cohort)
        if first.seen < 2:
            raise UserError("A comparison of methods needs two clients or more: with one there is nobody to learn with.")
        metric_of(metric or request.metric, first.task.name, first.task.labels(len(first.classes)))  # refuses one that is not of this task
        if request.rates:
            source(design.draws[0]).part("validation")  # refuses one that has none
    if resume and (out / NAME).is_file():  # a grid that was not widened when it was run stays as it is
        request = replace(request, extensions=_stored_extensions(out / NAME, request.extensions))
    runs = [_Run(request, *one, out, execution, callbacks, make) for one in zip(request.designs, sources, request.folders, strict=True)]
    for run in runs:
        run.check_tuning()
    request = replace(request, tests=tuple(run.test(entries) for run in runs))
    said = list(dict.fromkeys(told for run in runs if (told := run.shortfall(entries)) is not None))
    _tell(callbacks, said)
    for sentence in said if not callbacks else ():
        warnings.warn(sentence, DesignWarning, stacklevel=3)
    with _open(out, request, resume, callbacks, {run.name: run for run in runs}, entries):
        _carry_out(runs, entries, budget)
        return open_comparison(out, metric=metric or request.metric)


def _stored_extensions(path: Path, wanted: int) -> int:
    try:
        return int(read_object(path).get("extensions", 0))
    except UserError:  # it is damaged, and told of where it is opened
        return wanted


def _spelt(metric: str | ValueOf | None) -> str | None:
    """A metric as a word that a request can hold."""
    return metric if metric is None or isinstance(metric, str) else f"{metric.__module__}:{metric.__qualname__}"


def draws_of(data: str | Federation, data_dir: Path | None) -> Draws:
    """The draws of what a spec names; an object that cannot be drawn again is the same in every draw."""
    if isinstance(data, Federation):
        return Draws(lambda draw: data if data.redraw is None or draw == data.data_seed else data.redraw(draw))
    return Draws(partial(load, data, data_dir=data_dir))


def _carry_out(runs: Sequence["_Run"], entries: Sequence[Labelled], budget: float | None) -> None:
    """The federations one after another, each in its share of the time."""
    clock = Budget(60 * budget) if budget is not None else None
    for i, run in enumerate(runs):
        if clock is not None and clock.over:
            break
        share = clock.share(len(runs) - i) if clock is not None else None
        if clock is not None and run.execution.seeds_per_wave is None:
            run = replace(run, execution=replace(run.execution, seeds_per_wave=max(run.design.runs // WAVES, 1)))
        replace(run, budget=share).carry_out(entries)


@dataclass(frozen=True)
class _Run:
    """One federation of a comparison being carried out."""

    request: Request
    design: Design
    source: Draws
    name: str
    out: Path
    execution: Execution
    callbacks: tuple[Callback, ...]
    make: MakeModule = build_model  # of a model that is an object
    budget: Budget | None = None

    def carry_out(self, entries: Sequence[Labelled]) -> None:
        entries = self.completed(entries)
        if self.request.rates:
            entries = self._tuned(entries)
        self._study(entries, self.design, self.out / self.name)

    def completed(self, entries: Sequence[Labelled]) -> Sequence[Labelled]:
        """The methods with their controls, where those are wanted."""
        if not self.request.controls:
            return entries
        federation = self.source(self.design.draws[0])
        differ = bool(like_sized(federation.train.sizes[: federation.seen]).any())
        return with_controls(entries, federation.groups is not None, self.request.finetune, sizes_differ=differ)

    def tested(self, entries: Sequence[Labelled]) -> int:
        """The number of methods under test."""
        labels, methods = zip(*self.completed(entries), strict=True)
        return len(roles_of(labels, facts=own_facts(labels, methods)).methods)

    def test(self, entries: Sequence[Labelled]) -> DecidingTest | None:
        """The test that decides in this design."""
        return deciding_test(self.design.repetitions, self.tested(entries))

    def shortfall(self, entries: Sequence[Labelled]) -> str | None:
        """What this design cannot show, and what to ask for instead."""
        tests, design = self.tested(entries), self.design
        enough = repetitions_advised(tests)
        option = f"--draws {enough}, in Python draws={enough}"
        if len(design.draws) == 1:
            option = f"--seeds 0-{enough - 1}, in Python seeds=range({enough})"
        told = describe_design(design.repetitions, "draw" if len(design.draws) > 1 else "seed", tests, option)
        return told if told is None or len(self.request.designs) == 1 else f"{self.name}: {told}"

    def check_tuning(self) -> None:
        """Refuse to compare seeds by which the learning rates were chosen."""
        both = sorted({*self._tuning_seeds} & {*self.design.seeds}) if self.request.rates else []
        if both:
            raise UserError(f"The seeds {', '.join(map(str, both))} are those that learning rates are tuned with: compare others.")

    @property
    def _tuning_seeds(self) -> tuple[int, ...]:
        """Of a range of their own, so that the seeds compared can grow; a tuning that an earlier version began keeps its own."""
        there = self._tuning_settings
        return there.seeds if there is not None else tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.request.tuning_seeds))

    @property
    def _tuning_settings(self) -> Settings | None:
        try:
            return Settings.from_json(read_json(self.out / "tuning" / self.name / "settings.json"))
        except UserError:  # it is not there yet, or is made again
            return None

    def _tuned(self, entries: Sequence[Labelled]) -> list[Labelled]:
        """Every method at the rate that does best on validation parts of the first draw."""
        folder = self.out / "tuning" / self.name
        design, grid = Design(self.design.draws[:1], self._tuning_seeds), self.request.rates
        there = self._tuning_settings.methods if self._tuning_settings is not None else ()
        rates = {label: sorted({*map(float, grid), *stored_rates(there, label)}) for label, _ in entries}
        evidence = self._study(grid_of(entries, rates), design, folder)
        while wider := wider_grids(evidence, entries, rates, grid, self.request.extensions):
            told = [f"{label}: its best rate is the edge of the grid, so {rate:g} is tried, too." for label, rate in wider.items()]
            _tell(self.callbacks, told)
            rates = {label: sorted({*own, *([wider[label]] if label in wider else [])}) for label, own in rates.items()}
            evidence = self._study(grid_of(entries, rates), design, folder)
        found = choose_rates(evidence, entries, rates)
        _tell(self.callbacks, write_sealed(self.out, f"tuning/{self.name}.json", json_text(found)))
        return [at_rate(entry, found[entry[0]].chosen) for entry in entries]

    def _study(self, entries: Sequence[Labelled], design: Design, folder: Path) -> Evidence:
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
        budget = self.budget.share(1) if self.budget is not None else None  # waves of the grid say nothing about those of the study
        watchers = [_Sealing(self.out, f"{folder.relative_to(self.out).as_posix()}/settings.json"), *self.callbacks]
        return study.run(out=folder, resume=True, execution=self.execution, callbacks=watchers, budget=budget).evidence


@dataclass(frozen=True)
class _Sealing(Callback):
    """Seals a study's settings once its folder is open: it may have begun, or grown."""

    out: Path
    name: str

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        seal(self.out, self.name)


def _tell(callbacks: Iterable[Callback], sentences: Sequence[str]) -> None:
    for watcher in callbacks:
        for sentence in sentences:
            watcher.on_notice(sentence)


def _open(
    out: Path, request: Request, resume: bool, callbacks: Sequence[Callback], runs: Mapping[str, _Run], entries: Sequence[Labelled]
) -> Hold:
    """Begin a folder, or check that the one there is this comparison or a part of it; it is held for this process."""
    path, wanted = out / NAME, json_text(request.as_json())
    if not resume or not (path.is_file() or (out / SEALS).is_file()):
        return create_folder(out, NAME, lambda draft: write_sealed(draft, NAME, wanted), "comparison")
    hold = Hold(out)
    try:
        _tell(callbacks, mend_request(out, wanted))
        stored = Request.from_json(read_object(path), path)
        other = stored.obstacles(request)
        if not other:
            kept = [entry for entry in entries if entry[0] in stored.methods]
            other = [told for name in stored.folders for told in _spelt_otherwise(runs[name], kept, entries)]
        if other:
            raise UserError(
                f"{out} holds another comparison (it differs in {'; '.join(other)}): choose another --out. A comparison can get more "
                "methods, federations, draws, seeds or rounds: name those that it has and those that come."
            )
        if json_text(stored.as_json()) != wanted:
            write_grown(out, NAME, wanted)
    except BaseException:
        hold.close()
        raise
    return hold


def _spelt_otherwise(run: _Run, before: Sequence[Labelled], now: Sequence[Labelled]) -> list[str]:
    """A control that a new method's spelling would give another name: what was run under the old one would be lost."""
    return left_out("methods", *([label for label, _ in run.completed(some)] for some in (before, now)))
