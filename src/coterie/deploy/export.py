"""From a study's folder to what one of its lanes serves everybody, newcomers too.

The folder is only read. Clients that never took part are served by the method itself, which may ask them for that.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.comparison import compare_evidence
from coterie.analysis.recommendation import Recommendation, require_recommendation
from coterie.core.arrays import Ids
from coterie.core.errors import UserError, suggestion
from coterie.core.json_object import read_object, read_words
from coterie.core.method import Method
from coterie.core.trust import check_trust
from coterie.data.catalogue import load
from coterie.data.content import contents, differing
from coterie.data.federation import Federation
from coterie.data.newcomers import with_newcomers
from coterie.deploy.served import Served
from coterie.engines.engine import Engine
from coterie.engines.make import make_engine, resolve_device
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.evidence.record import LaneKey
from coterie.evidence.restore import Restored, standing
from coterie.evidence.settings import Settings
from coterie.evidence.source import Folder
from coterie.evidence.wholeness import is_study
from coterie.methods.catalogue import build
from coterie.run.drive import answer
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.result import Result
from coterie.run.study import Study


def served(
    folder: Path | str,
    method: str | None = None,
    *,
    seed: int | None = None,
    draw: int | None = None,
    data_dir: Path | None = None,
    federation: Federation | None = None,
    made: Method[Any] | None = None,
    newcomers: Federation | None = None,
    trust: bool = False,
) -> Served:
    """What a method serves at the end of a study. `federation` and `made` stand in for specs, as they do in `ct.study`.

    The folder may be a comparison's; without `method`, of several the recommended one is taken. With `newcomers`, clients that the study
    never knew, it is what the method's own cold start gives them. A model that is code which the evidence names needs `trust`.
    """
    folder = find_study(Path(folder))
    evidence = Evidence.open(folder)
    method = choose_method(evidence).label if method is None else method
    check_trust([evidence.settings.model], str(folder), trust)
    check_trust([evidence.settings.plan.selection], str(folder), trust, "sampler")
    if not isinstance(evidence.source, Folder):
        raise UserError(f"{folder} was written by an earlier version, whose states cannot be read: run the study again.")
    settings = _chosen(evidence.settings, method, seed, draw)
    key = LaneKey(settings.draws[0], settings.methods[0], settings.seeds[0])
    restored = _last(folder, key, settings)
    check_trust(settings.methods, str(folder), trust or made is not None, "method")
    methods = [build(settings.methods[0], trust=trust) if made is None else made]
    known = federation or load(settings.data, key.draw, data_dir)
    _check_data(folder, settings.data, key.draw, known)
    if newcomers is not None:
        known = with_newcomers(known.at(settings.plan.rounds), newcomers)
    study = Study.prepare(settings, federation=known, methods=methods)
    world, roster = study.worlds[key.draw], evidence.rosters[key.draw]
    listed = ["id", "train"]
    if not study.rosters[key.draw].select(listed).slice(0, len(roster)).equals(roster.select(listed)):
        raise UserError(f"The clients of {settings.data!r} are not those of {folder}: point --data-dir to the data it was run on.")
    (lane,) = study.lanes()
    lane.go_on(restored.end, restored.state)
    clients = _everybody(world)
    with _engine(folder, study) as engine:
        if newcomers is None:
            return served_by(study, lane, engine, clients)
        return served_newcomers(study, lane, engine, clients[len(roster) :])


def find_study(folder: Path) -> Path:
    """The study in a folder: the folder itself, or the only study of a comparison.

    Raises:
        UserError: The folder holds no study, or studies of several federations.
    """
    if is_study(folder) or not folder.is_dir():
        return folder
    found = sorted(path for path in folder.glob("*") if is_study(path))
    if len(found) > 1:
        raise UserError(f"{folder} compares {len(found)} federations: name one of {', '.join(map(str, found))}.")
    return found[0] if found else folder


def choose_method(evidence: Evidence) -> Recommendation:
    """The method whose models to use: the only one, or the one that the comparison recommends; controls are never chosen.

    Raises:
        UserError: The runs are too few to recommend one of several methods.
    """
    labels = evidence.settings.methods
    if len(labels) == 1:
        return Recommendation(labels[0], labels[0], "the only method of the study", "", labels[0])
    (findings,) = compare_evidence([evidence]).federations
    return require_recommendation(findings)


def recommended(folder: Path, method: str | None) -> Recommendation | None:
    """Why the method of a folder is taken that nobody named; None where one was named, or there is but one."""
    evidence = Evidence.open(find_study(folder)) if method is None else None
    return choose_method(evidence) if evidence is not None and len(evidence.settings.methods) > 1 else None


def served_by(study: Study, lane: Lane, engine: Engine, clients: Ids) -> Served:
    """What a lane that has reached its end serves these clients."""
    script = lane.method.serve(lane.state, clients, lane.context(lane.round_, everybody=True))
    serving = answer(script, engine, seed=lane.keyed, round_=lane.round_, draw=lane.key.draw)
    world, missing = study.worlds[lane.key.draw], frozenset[int]()
    if lane.method.is_local:
        start = lane.problem.initial(lane.keyed)()
        untrained = [row for row, model in enumerate(serving.models) if np.array_equal(model, start)]
        missing = frozenset(serving.clients[np.isin(serving.rows, untrained)].tolist())
    return Served(lane, study.settings.model, world.federation.at(lane.round_), serving, world.model.make, missing)


def served_newcomers(study: Study, lane: Lane, engine: Engine, clients: Ids) -> Served:
    """The same for clients that the study never knew: a method that trains each client alone trains them first."""
    script = lane.method.admit(lane.state, clients, lane.context(lane.round_, everybody=True))
    lane.state = answer(script, engine, seed=lane.keyed, round_=lane.round_, draw=lane.key.draw)
    return served_by(study, lane, engine, clients)


def served_result(
    result: Result, method: str | None = None, seed: int | None = None, draw: int | None = None, newcomers: Federation | None = None
) -> Served:
    """What a study that was run in this process serves: its objects are at hand, whether anything was written or not."""
    if result.run is None:
        folder = result.evidence.source.folder
        if folder is None:
            raise UserError("The result has neither a folder nor the study that it is of: run the study again.")
        return served(folder, method, seed=seed, draw=draw, newcomers=newcomers, trust=True)
    study, lanes = result.run.study, result.run.lanes
    chosen = _chosen(study.settings, choose_method(result.evidence).label if method is None else method, seed, draw)
    key = LaneKey(chosen.draws[0], chosen.methods[0], chosen.seeds[0])
    lane = next(each for each in lanes if each.key == key)
    if not lane.end.complete(study.settings.plan.rounds):
        raise UserError(f"{key.method}, seed {key.seed}, did not reach the end ({lane.end}): it has no model to give.")
    world = study.worlds[key.draw]
    clients = _everybody(world)
    if newcomers is not None:
        both = with_newcomers(world.federation.at(lane.round_), newcomers)
        study = Study.prepare(chosen, federation=both, methods=[lane.method], loss=world.loss, make=world.model.make)
        (beside,) = study.lanes()
        beside.go_on(lane.end, lane.state)
        lane, clients = beside, _everybody(study.worlds[key.draw])[len(clients) :]
    with make_engine(study.worlds, "auto", "cpu") as engine:
        return served_by(study, lane, engine, clients) if newcomers is None else served_newcomers(study, lane, engine, clients)


def _everybody(world: World) -> Ids:
    """All clients, those who took no part included."""
    return np.arange(len(world.federation), dtype=np.int64)


def _check_data(folder: Path, spec: str, draw: int, federation: Federation) -> None:
    """Refuse other data than the study's, by what they hold; a folder of before they were hashed has only its list of clients."""
    path = folder / "data.json"
    before = read_object(path).get(str(draw)) if path.exists() else None
    other = differing(before, contents(federation)) if isinstance(before, dict) else []
    if other:
        raise UserError(
            f"The data of {spec!r} are not those of {folder} ({', '.join(other)} differ): point --data-dir to those it was run on."
        )


def _chosen(settings: Settings, label: str, seed: int | None, draw: int | None) -> Settings:
    """The study cut down to one lane. A method's bare name is enough where only one is called so."""
    labels = settings.methods
    if label not in labels:
        alike = [known for known in labels if known.partition("(")[0].strip() == label]
        if len(alike) != 1:
            raise UserError(f"The study has no method {label!r}: {suggestion(label, labels)}")
        label = alike[0]
    for kind, value, known in (("seed", seed, settings.seeds), ("draw of the data", draw, settings.draws)):
        if value is not None and value not in known:
            raise UserError(f"The study has no {kind} {value}: choose from {', '.join(map(str, known))}.")
    seeds = settings.seeds[:1] if seed is None else (seed,)
    return replace(settings, methods=(label,), seeds=seeds, draws=settings.draws[:1] if draw is None else (draw,))


def _last(folder: Path, key: LaneKey, settings: Settings) -> Restored:
    """The lane's last state, if that is the state of the last round."""
    who, rounds = f"{key.method}, seed {key.seed}, of {folder}", settings.plan.rounds
    found = standing(folder, [key]).lanes.get(key) if (folder / "segments").is_dir() else None
    if found is None or found.state is None:
        raise UserError(f"There is no state of {who} to export: let the study run to its end with --resume.")
    if found.end.failed:
        raise UserError(f"{who} {found.end}: what did not reach the end is not exported.")
    if not found.end.complete(rounds):
        raise UserError(f"{who} is at round {found.end.round_} of {rounds}: let the study run to its end with --resume.")
    return found


def _engine(folder: Path, study: Study) -> Engine:
    """An engine like the study's, on its device where that is here."""
    execution, routes = Execution.read(folder / "execution.json"), folder / "routes.json"
    if execution.device != "cpu" and resolve_device("auto") == "cpu":
        return make_engine(study.worlds, execution.engine, "cpu")
    pinned = read_words(routes) if routes.exists() else None
    return make_engine(
        study.worlds, execution.engine, execution.device, pinned=pinned, precision=execution.precision, microbatch=execution.microbatch
    )
