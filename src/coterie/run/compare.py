"""`compare`: methods beside the controls that say where a gain comes from, on one or several federations, resumable and on time."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.roles import assigned, variant
from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.core.local import Local
from coterie.core.locks import Hold
from coterie.core.method import Method
from coterie.core.plain import json_text, plain
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.evidence.creation import create_folder
from coterie.evidence.reader import Evidence
from coterie.evidence.seals import REQUEST as NAME
from coterie.evidence.seals import SEALS, mend_request, seal, write_sealed
from coterie.evidence.settings import Settings
from coterie.grouping.controls import Assign, like_sized
from coterie.methods.catalogue import build, spec_of
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.run.budget import Budget
from coterie.run.callbacks import Callback
from coterie.run.designs import Design, Draws, design_of
from coterie.run.execution import Execution
from coterie.run.options import plan_of
from coterie.run.study import Study
from coterie.run.tuning import Labelled, at_rate, choose_rates, grid_of, with_validation

FORMAT = 3  # with designs, and sealed
WAVES = 7  # with a budget, seeds run in about so many waves: fewer would waste a large unfinished one, more would leave engines idle


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is compared. Equal requests give equal evidence."""

    methods: tuple[str, ...]
    data: tuple[str, ...]
    designs: tuple[Design, ...]  # of each federation
    model: str = "mclr"
    plan: Plan = field(default_factory=Plan)
    controls: bool = True
    finetune: int = 5  # epochs of the fine-tuned FedAvg among the controls
    rates: tuple[float, ...] = ()  # of --tune; none: every method at the plan's rate
    tuning_seeds: int = 2

    def __post_init__(self) -> None:
        for name, count in (("finetune", self.finetune), ("tuning_seeds", self.tuning_seeds)):
            if count < 1:
                raise UserError(f"A comparison cannot use {name}={count}: give 1 or more.")

    @property
    def folders(self) -> list[str]:
        """A folder's name for each federation."""
        names = [re.sub(r"[^\w.]+", "-", spec).strip("-.") for spec in self.data]
        return [name if names.index(name) == i else f"{name}-{i + 1}" for i, name in enumerate(names)]

    def as_json(self) -> dict[str, Any]:
        tree: dict[str, Any] = plain({"format": FORMAT, **asdict(self), "folders": self.folders})
        return tree


def compare(
    methods: Sequence[Method[Any] | str],
    *,
    out: Path | str,
    data: Sequence[str | Federation] | str | Federation = "digits/rotated",
    budget: float | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    callbacks: Iterable[Callback] = (),
    draws: int | None = None,
    seeds: Iterable[int] | None = None,
    data_seed: int = 0,
    plan: Plan | None = None,
    local: Local | None = None,
    **settings: Any,
) -> Comparison:
    """Run methods with their controls on each federation, into one folder each below `out`, and compare them.

    `settings` are those of `Request`, and those of `Plan` and `Local` by their names, as for `study`. `draws` and `seeds` make the design
    (see `design_of`); draws begin at `data_seed`. `budget` is in minutes: the run ends on time with complete pairs, and `resume` goes on.
    """
    own = {f.name: settings.pop(f.name) for f in fields(Request) if f.name in settings}
    settings = own | {"plan": plan_of(settings, plan, local)}
    entries = [(m, build(m, trust=True)) if isinstance(m, str) else (spec_of(m), m) for m in methods]
    given = (data,) if isinstance(data, (str, Federation)) else tuple(data)
    if not given:
        raise UserError("A comparison needs data: give --data, once for each federation.")
    settings |= {"rates": tuple(settings.get("rates", ()))}
    if settings["rates"]:
        given = tuple(each if isinstance(each, Federation) else with_validation(each) for each in given)
    specs = tuple(each.name if isinstance(each, Federation) else each for each in given)
    sources = [draws_of(each, data_dir) for each in given]
    chosen = None if seeds is None else tuple(seeds)
    designs = tuple(
        design_of(spec, source, first=data_seed, draws=draws, seeds=chosen) for spec, source in zip(specs, sources, strict=True)
    )
    request = Request(methods=tuple(label for label, _ in entries), data=specs, designs=designs, **settings)
    for source, design in zip(sources, designs, strict=True):
        request.plan.check(len(source(design.draws[0])))
        if request.rates:
            source(design.draws[0]).part("validation")  # refuses one that has none
    out = Path(out)
    with _open(out, request, resume, tuple(callbacks)):
        _carry_out(request, entries, sources, out, budget, execution or Execution(), tuple(callbacks))
        return open_comparison(out)


def draws_of(data: str | Federation, data_dir: Path | None) -> Draws:
    """The draws of what a spec names; one that is given as an object is the same in every draw."""
    if isinstance(data, Federation):
        return Draws(lambda draw: data)
    return Draws(partial(load, data, data_dir=data_dir))


def _carry_out(
    request: Request,
    entries: Sequence[Labelled],
    sources: Sequence[Draws],
    out: Path,
    budget: float | None,
    execution: Execution,
    callbacks: tuple[Callback, ...],
) -> None:
    """The federations one after another, each in its share of the time."""
    clock = Budget(60 * budget) if budget is not None else None
    for i, (source, design, name) in enumerate(zip(sources, request.designs, request.folders, strict=True)):
        if clock is not None and clock.over:
            break
        share = clock.share(len(sources) - i) if clock is not None else None
        at_once = max(design.runs // WAVES, 1) if clock is not None and execution.seeds_per_wave is None else execution.seeds_per_wave
        _Run(request, design, source, out, name, replace(execution, seeds_per_wave=at_once), callbacks, share).carry_out(entries)


def with_controls(entries: Sequence[Labelled], known_groups: bool, finetune: int, *, sizes_differ: bool = True) -> list[Labelled]:
    """The methods with what tells a gain from similarity apart: baselines first, then each method followed by its own controls.

    A method that groups gets random groups of the same sizes; where clients differ in size, random groups among clients of like size,
    which keep the weights; and, where the true groups are known, those. What is there already is not added again.
    """
    baselines: list[Method[Any]] = [FedAvg(), FedAvg(weighting="uniform"), LocalOnly(), FineTuned(method=FedAvg(), epochs=finetune)]
    wanted: list[Labelled] = [(spec_of(method), method) for method in baselines]
    for label, method in entries:
        wanted.append((label, method))
        if assigned(method) == "similar":
            there: dict[Assign, bool] = {"random": True, "matched": sizes_differ, "oracle": known_groups}
            ways = [way for way, known in there.items() if known]
            wanted += [(spec_of(control), control) for control in (variant(method, way) for way in ways)]
    own = {method: label for label, method in entries}  # a user's spelling wins
    return [(own.get(method, label), method) for method, label in {method: label for label, method in wanted}.items()]


@dataclass(frozen=True)
class _Run:
    """One federation of a comparison being carried out."""

    request: Request
    design: Design
    source: Draws
    out: Path
    name: str
    execution: Execution
    callbacks: tuple[Callback, ...]
    budget: Budget | None

    def carry_out(self, entries: Sequence[Labelled]) -> None:
        if self.request.controls:
            federation = self.source(self.design.draws[0])
            differ = bool(like_sized(federation.train.sizes).any())
            entries = with_controls(entries, federation.groups is not None, self.request.finetune, sizes_differ=differ)
        if self.request.rates:
            entries = self._tuned(entries)
        self._study(entries, self.design, self.out / self.name)

    def _tuned(self, entries: Sequence[Labelled]) -> list[Labelled]:
        """Every method at the rate that does best on validation parts of the first draw."""
        first = max(self.design.seeds) + 1
        folder = self.out / "tuning" / self.name
        design = Design(self.design.draws[:1], tuple(range(first, first + self.request.tuning_seeds)))
        evidence = self._study(grid_of(entries, self.request.rates), design, folder)
        found = choose_rates(evidence, entries, self.request.rates)
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
        study = Study.prepare(settings, federation=federations, methods=[method for _, method in entries])
        budget = self.budget.share(1) if self.budget is not None else None  # waves of the grid say nothing about those of the study
        evidence = study.run(out=folder, resume=True, execution=self.execution, callbacks=self.callbacks, budget=budget).evidence
        seal(self.out, f"{folder.relative_to(self.out).as_posix()}/settings.json")
        return evidence


def _tell(callbacks: Iterable[Callback], sentences: Sequence[str]) -> None:
    for watcher in callbacks:
        for sentence in sentences:
            watcher.on_notice(sentence)


def _open(out: Path, request: Request, resume: bool, callbacks: Sequence[Callback]) -> Hold:
    """Begin a folder, or check that the one there is this comparison; it is held for this process."""
    path, wanted = out / NAME, request.as_json()
    if not resume or not (path.is_file() or (out / SEALS).is_file()):
        return create_folder(out, NAME, lambda draft: write_sealed(draft, NAME, json_text(wanted)), "comparison")
    hold = Hold(out)
    try:
        _tell(callbacks, mend_request(out, json_text(wanted)))
        stored = read_object(path)
        other = sorted(name for name in wanted.keys() | stored.keys() if wanted.get(name) != stored.get(name))
        if other:
            raise UserError(f"{out} holds another comparison (it differs in {', '.join(other)}): choose another --out.")
    except BaseException:
        hold.close()
        raise
    return hold
