"""Runs of a reproduction: every part is a study with its own evidence, resumed where it stopped, or a measurement."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coterie._util.errors import UserError, suggest_names
from coterie._util.files import resolve_inside
from coterie.core.specs import check_cluster, check_trust
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneEnd, LaneKey
from coterie.evidence.settings import Settings, parse_seeds
from coterie.methods.client_probes import ask_pni
from coterie.reproduce.study_files import Reproduction, StudyPart, load_study_code
from coterie.run.callbacks import Callback
from coterie.run.driver import run_script
from coterie.run.execution import Execution, override_workers
from coterie.run.study import Study


@dataclass(frozen=True)
class Measurement:
    """A row's score."""

    row: str
    score: str
    seed: int
    value: float


Measure = Callable[[Federation, Settings], list[Measurement]]


def measure_pni(federation: Federation, settings: Settings) -> list[Measurement]:
    """FedSim's index (Section 3.3), as printed and normalised, for each seed."""
    world = World.from_spec(federation, settings.model)
    clients, found = world.problem.roster.clients, []
    with LoopEngine(world) as engine:
        for seed in settings.seeds:
            index = run_script(ask_pni(clients, world.model.initial(seed)), engine, seed=seed)
            found += [Measurement("pni", "literal", seed, index.literal), Measurement("pni", "normalised", seed, index.normalised)]
    return found


def load_measure(name: str) -> Measure:
    """The function of a part's ``measure``: `measure_pni`, or one of `measurements.py` beside Coterie's own study files."""
    if name == "pni":
        return measure_pni
    found: Measure = getattr(load_study_code("measurements"), f"measure_{name}")
    return found


MAX_REASON = 200  # characters of why a run ended early


@dataclass(frozen=True)
class PartRun:
    """What a part left behind: the evidence of one study, or of one a seed, or what was measured; or why there is nothing."""

    part: StudyPart
    studies: tuple[Evidence, ...] = ()  # redrawn data: one for each seed
    last: tuple[Evidence, ...] = ()  # of controls judged after the last round only
    measured: tuple[Measurement, ...] = ()
    why_not: str = ""
    settings: Settings | None = None  # as they were run
    asked: bool = True  # False: the command left it out
    early: tuple[str, ...] = ()  # which runs ended before the last round, and why: they have no scores


def run_parts(
    study: Reproduction,
    *,
    out: Path,
    seeds: str | None = None,
    rounds: int | None = None,
    data_dir: Path | None = None,
    anyway: bool = False,
    trust: bool = False,
    only: Sequence[str] = (),
    callbacks: Iterable[Callback] = (),
    workers: int | None = None,
    ray: str | None = None,
    memory: float | None = None,
) -> list[PartRun]:
    """All parts, in order. One that cannot be run here has a reason and does not stop the others.

    `seeds` replaces the study's own, `rounds` cuts it short, `anyway` runs GPU parts on what is there, `trust` code that the file names,
    `only` names the parts to be run: without it all but those in whose place another stands. `workers` or a `ray` cluster run waves
    in parallel; `memory` is the GiB of models and replies in a wave, or in all waves that this machine's workers run.
    """
    if unknown := [name for name in only if name not in {part.name for part in study.parts}]:
        raise UserError(
            f"The study {study.name} has no part {unknown[0]!r}: {suggest_names(unknown[0], [part.name for part in study.parts])}"
        )
    check_trust([study.get_settings(part).settings.model for part in study.parts], f"The study file {study.path}", trust)
    check_trust(
        [study.get_settings(part).settings.plan.selection for part in study.parts], f"The study file {study.path}", trust, "sampler"
    )
    clusters = [study.get_settings(part).execution.ray for part in study.parts]
    check_cluster(clusters, f"The study file {study.path}", trust or ray is not None)
    watchers = list(callbacks)
    found = []
    carried = partial(override_workers, workers=workers, ray=ray, memory=memory)
    for part in study.parts:
        settings = _part_settings(study, part, seeds, rounds)
        asked = part.name in only if only or part.instead else True
        why = part.why_not or (_missing_device(study, part, anyway) if asked else explain_not_run(study, part))
        found.append(
            PartRun(part, why_not=why, settings=settings, asked=asked)
            if why
            else _run_part(study, part, settings, carried(study.get_settings(part).execution), out, data_dir, watchers)
        )
    return found


def _part_settings(study: Reproduction, part: StudyPart, seeds: str | None, rounds: int | None) -> Settings:
    settings = study.get_settings(part).settings
    if rounds is not None:
        settings = replace(settings, plan=replace(settings.plan, rounds=min(rounds, settings.plan.rounds)))
    return settings if seeds is None else replace(settings, seeds=parse_seeds(seeds))


def explain_not_run(study: Reproduction, part: StudyPart) -> str:
    """Why there is nothing of a part that could be run: what it costs, that another was declared in its place, or that it is to be run."""
    needs = f"needs about {part.cost}" if part.cost else ""
    if part.instead:
        return "; ".join(filter(None, [needs, f"reduced to the part {part.instead!r}"]))
    return needs or "declared, no scores" + (" (needs a GPU)" if study.needs.gpu or part.gpu else "")


def _missing_device(study: Reproduction, part: StudyPart, anyway: bool) -> str:
    if anyway or not (study.needs.gpu or part.gpu):
        return ""
    import torch  # here: listing studies need not wait for it

    if torch.cuda.is_available():
        return ""
    return "needs a GPU (--anyway runs it on the processor)"


def _run_part(
    study: Reproduction,
    part: StudyPart,
    settings: Settings,
    execution: Execution,
    out: Path,
    data_dir: Path | None,
    watchers: list[Callback],
) -> PartRun:
    draws = [replace(settings, seeds=(seed,), draws=(seed,)) for seed in settings.seeds] if part.redrawn else [settings]
    last: list[Evidence] = []
    studies: list[Evidence] = []
    measured: list[Measurement] = []
    early: list[str] = []
    for drawn in draws:
        try:
            federation = load(drawn.data, drawn.draws[0], data_dir)
        except UserError as error:  # files that are not there, mostly
            return PartRun(
                part, settings=settings, why_not=f"{str(error).partition(':')[0].rstrip('.')} (see: coterie data '{drawn.data}')"
            )
        if part.measure != "training":
            measured += load_measure(part.measure)(federation, drawn)
            continue
        folder = resolve_inside(out, part.name, *([f"seed-{drawn.draws[0]}"] if part.redrawn else []))
        jobs = [(drawn, folder / "rounds", studies)]
        if controls := study.get_last_only(part):
            once = replace(drawn.plan, evaluate_every=drawn.plan.rounds)
            jobs.append((replace(drawn, methods=tuple(controls), plan=once), folder / "last", last))
        for each, place, kept in jobs:
            prepared = Study.prepare(each, federation=federation)
            # checkpoints hold every lane's state, so a long study has at most ten
            sparse = replace(execution, checkpoint_every=max(execution.checkpoint_every, -(-each.plan.rounds // 10)))
            result = prepared.run(out=place, resume=True, execution=sparse, callbacks=watchers)
            kept.append(result.evidence)
            early += [_describe_early_end(key, end) for key, end in result.problems.items()]
    return PartRun(part, tuple(studies), tuple(last), tuple(measured), settings=settings, early=tuple(early))


def _describe_early_end(key: LaneKey, end: LaneEnd) -> str:
    """Which run ended early and why, in what a page can hold: an error may have many lines, and marks that a page would read."""
    why = str(end).partition("\n")[0].replace("`", "'")
    return f"{key.method}, seed {key.seed} (`{why if len(why) <= MAX_REASON else why[: MAX_REASON - 3] + '...'}`)"
