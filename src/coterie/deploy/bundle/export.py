"""Export of a study's models: what a finished lane serves each client, newcomers included, as bundles, ONNX files or PEFT adapters."""

import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from coterie._util.errors import UserError, check_names, suggest_names
from coterie._util.json_io import read_json_object, read_json_strings
from coterie.analysis.comparison import compare_evidence
from coterie.analysis.verdict import Recommendation, require_recommendation
from coterie.core.arrays import Floats, Ids
from coterie.core.method import Method
from coterie.core.model import MakeModule
from coterie.core.serving import COMBINED, Serving
from coterie.core.specs import check_trust, parse
from coterie.core.tasks import Task
from coterie.data.catalogue import load
from coterie.data.content import find_differences, hash_contents
from coterie.data.federation import Federation
from coterie.data.joining import add_newcomers
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.rows import describe_samples
from coterie.deploy.messages import restrict_combiner
from coterie.engines.batched import make_engine, resolve_device
from coterie.engines.engine import Engine
from coterie.engines.loss import compute_scores
from coterie.engines.world import World
from coterie.evidence.manifest import is_study
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey
from coterie.evidence.restore import RestoredLane, load_lanes
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.models.catalogue import build_model
from coterie.models.layers import LoraLinear
from coterie.models.lm import NextTokens
from coterie.run.driver import run_script
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.result import Result
from coterie.run.study import Study


@dataclass(frozen=True)
class ServedModels:
    """A lane at its last round, and what it serves every client of the federation."""

    lane: Lane
    model: str
    federation: Federation  # as the last round finds it
    serving: Serving
    make: MakeModule = build_model
    untrained: frozenset[int] = frozenset()  # clients whose model is the one that training began with

    def bundle(self, clients: Sequence[str]) -> Bundle:
        """The bundle of these clients: their models only, or all of them where a combiner answers."""
        federation, key = self.federation, self.lane.key
        check_names(clients, federation.ids, "client")
        place = {name: number for number, name in enumerate(federation.ids)}
        numbers = [place[name] for name in dict.fromkeys(clients)]
        if without := [federation.ids[number] for number in numbers if number in self.untrained]:
            raise UserError(
                f"{key.method} has no trained model for {', '.join(without[:3])}{', ...' if len(without) > 3 else ''}: it never took part "
                "in a round that trained; choose another --method, or run more rounds with a larger cohort."
            )
        if self.serving.neighbours is not None:
            raise UserError(f"{key.method} answers from clients' own samples, which a bundle does not hold: export it without knn.")
        own = self.serving.take(np.array([self._rows[number] for number in numbers], dtype=np.int64))
        combined = COMBINED in own.rows
        kept = np.arange(len(own.models)) if combined else np.unique(own.rows)
        rows = [row if row == COMBINED else int(np.searchsorted(kept, row)) for row in own.rows.tolist()]
        names = [federation.ids[number] for number in numbers]
        return Bundle(
            origin=Origin(key.method, federation.name, key.seed, key.draw, self.lane.round_),
            model=self.model,
            models=own.models[kept],
            names=tuple(self._names[row] for row in kept.tolist()),
            clients=dict(zip(names, rows, strict=True)),
            combiner=restrict_combiner(own.combiner, own.places) if combined and own.combiner is not None else None,
            make=self.make,
            **describe_samples(federation, names),
        )

    @cached_property
    def _rows(self) -> dict[int, int]:
        """The row of each client in the serving."""
        return {client: row for row, client in enumerate(self.serving.clients.tolist())}

    @cached_property
    def _names(self) -> list[str]:
        return name_models(self.lane, self.serving, self.federation.ids)


def name_models(lane: Lane, serving: Serving, ids: Sequence[str]) -> list[str]:
    """A name for each model of a serving: the method's own where it names that model, else by the client that holds it."""
    named = lane.method.central(lane.state)
    known: list[tuple[str, Floats]] = []
    if named is not None:
        places = zip(named.names, named.serving.rows.tolist(), strict=True)
        known = [(name, named.serving.models[row]) for name, row in places if row != COMBINED]

    def name_of(row: int) -> str:
        same = [name for name, model in known if np.array_equal(model, serving.models[row])]
        if same:
            return f"group {row}" if f"group {row}" in same else same[0]  # groups that no client trained may have equal models
        holders = serving.clients[serving.rows == row].tolist()
        return f"own of {ids[holders[0]]}" if len(holders) == 1 else f"model {row}"

    return [name_of(row) for row in range(len(serving.models))]


def load_served_models(
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
) -> ServedModels:
    """What a method serves at the end of a study. `federation` and `made` stand in for specs, as they do in `ct.study`.

    The folder may be a comparison's; without `method`, of several the recommended one is taken. With `newcomers`, clients that the study
    never knew, it is what the method's own cold start gives them. A model that is code which the evidence names needs `trust`.
    """
    folder = find_study(Path(folder))
    evidence = Evidence.open(folder)
    method = choose_method(evidence).label if method is None else method
    check_trust([evidence.settings.model], str(folder), trust)
    check_trust([evidence.settings.plan.selection], str(folder), trust, "sampler")
    settings = _select_lane(evidence.settings, method, seed, draw)
    key = LaneKey(settings.draws[0], settings.methods[0], settings.seeds[0])
    check_trust(settings.methods, str(folder), trust or made is not None, "method")
    methods = [build(settings.methods[0], trust=trust) if made is None else made]  # before its state is read, which its module defines
    restored = _restore_last(folder, key, settings)
    known = federation or load(settings.data, key.draw, data_dir)
    _check_data(folder, settings.data, key.draw, known)
    if newcomers is not None:
        known = add_newcomers(known.at_round(settings.plan.rounds), newcomers)
    study = Study.prepare(settings, federation=known, methods=methods)
    world, roster = study.worlds[key.draw], evidence.rosters[key.draw]
    listed = ["id", "train"]
    if not study.rosters[key.draw].select(listed).slice(0, len(roster)).equals(roster.select(listed)):
        raise UserError(f"The clients of {settings.data!r} are not those of {folder}: point --data-dir to the data it was run on.")
    (lane,) = study.lanes()
    lane.resume_from(restored.end, restored.state)
    clients = _list_all_clients(world)
    with _make_study_engine(folder, study) as engine:
        if newcomers is None:
            return serve_clients(study, lane, engine, clients)
        return serve_newcomers(study, lane, engine, clients[len(roster) :])


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


def find_recommendation(folder: Path, method: str | None) -> Recommendation | None:
    """Why the method of a folder is taken that was not named; None where one was named, or there is but one."""
    evidence = Evidence.open(find_study(folder)) if method is None else None
    return choose_method(evidence) if evidence is not None and len(evidence.settings.methods) > 1 else None


def serve_clients(study: Study, lane: Lane, engine: Engine, clients: Ids) -> ServedModels:
    """What a lane that has reached its end serves these clients."""
    script = lane.serve(lane.state, clients, lane.context(lane.round_, with_unseen=True))
    serving = run_script(script, engine, seed=lane.derived_seed, round_=lane.round_, draw=lane.key.draw)
    world, missing = study.worlds[lane.key.draw], frozenset[int]()
    if lane.method.is_local:
        start = lane.problem.initial(lane.derived_seed)()
        untrained = [row for row, model in enumerate(serving.models) if np.array_equal(model, start)]
        missing = frozenset(serving.clients[np.isin(serving.rows, untrained)].tolist())
    return ServedModels(lane, study.settings.model, world.federation.at_round(lane.round_), serving, world.model.make, missing)


def serve_newcomers(study: Study, lane: Lane, engine: Engine, clients: Ids) -> ServedModels:
    """The same for clients that the study never knew: a method that trains each client alone trains them first."""
    script = lane.method.admit(lane.state, clients, lane.context(lane.round_, with_unseen=True))
    lane.state = run_script(script, engine, seed=lane.derived_seed, round_=lane.round_, draw=lane.key.draw)
    return serve_clients(study, lane, engine, clients)


def served_result(
    result: Result, method: str | None = None, seed: int | None = None, draw: int | None = None, newcomers: Federation | None = None
) -> ServedModels:
    """What a study that was run in this process serves: its objects are at hand, whether anything was written or not."""
    if result.run is None:
        folder = result.evidence.source.folder
        if folder is None:
            raise UserError("The result has neither a folder nor the study that it is of: run the study again.")
        return load_served_models(folder, method, seed=seed, draw=draw, newcomers=newcomers, trust=True)
    study, lanes = result.run.study, result.run.lanes
    chosen = _select_lane(study.settings, choose_method(result.evidence).label if method is None else method, seed, draw)
    key = LaneKey(chosen.draws[0], chosen.methods[0], chosen.seeds[0])
    lane = next(each for each in lanes if each.key == key)
    if not lane.end.complete(study.settings.plan.rounds):
        raise UserError(f"{key.method}, seed {key.seed}, did not reach the end ({lane.end}): it has no model to give.")
    world = study.worlds[key.draw]
    clients = _list_all_clients(world)
    if newcomers is not None:
        both = add_newcomers(world.federation.at_round(lane.round_), newcomers)
        study = Study.prepare(chosen, federation=both, methods=[lane.method], loss=world.loss, make=world.model.make, is_scored=False)
        (beside,) = study.lanes()
        beside.resume_from(lane.end, lane.state)
        lane, clients = beside, _list_all_clients(study.worlds[key.draw])[len(clients) :]
    with make_engine(study.worlds, "auto", "cpu") as engine:
        return serve_clients(study, lane, engine, clients) if newcomers is None else serve_newcomers(study, lane, engine, clients)


def get_bundle(result: Result, client: str, method: str | None = None, *, seed: int | None = None, draw: int | None = None) -> Bundle:
    """The bundle of a client: the model that serves it at the end of a study, with `predict`, `predict_proba` and `classes_`.

    Args:
        result: A study's result.
        client: The client's name.
        method: The method. Default: the one that the comparison recommends.
        seed: The seed. Default: the study's first.
        draw: The draw of the data. Default: the study's first.

    Returns:
        The bundle, with the client's model and what is needed to answer its rows.

    Example:
        >>> import coterie as ct
        >>> result = ct.study("fedavg", data="synthetic(0,0,clients=10)", rounds=2)
        >>> bundle = ct.get_bundle(result, "client-3")
    """
    return served_result(result, method, seed, draw).bundle([client])


def _list_all_clients(world: World) -> Ids:
    """All clients, also those that took no part."""
    return np.arange(len(world.federation), dtype=np.int64)


def _check_data(folder: Path, spec: str, draw: int, federation: Federation) -> None:
    """Refuse other data than the study's, by what they hold."""
    path = folder / "data.json"
    before = read_json_object(path).get(str(draw)) if path.exists() else None
    if isinstance(before, dict) and (other := find_differences(before, hash_contents(federation))):
        raise UserError(
            f"The data of {spec!r} are not those of {folder} ({', '.join(other)} differ): point --data-dir to those it was run on."
        )


def _select_lane(settings: Settings, label: str, seed: int | None, draw: int | None) -> Settings:
    """The study cut down to one lane. A method's bare name is enough where only one is called so."""
    labels = settings.methods
    if label not in labels:
        alike = [known for known in labels if known.partition("(")[0].strip() == label]
        if len(alike) != 1:
            raise UserError(f"The study has no method {label!r}: {suggest_names(label, labels)}")
        label = alike[0]
    for kind, value, known in (("seed", seed, settings.seeds), ("draw of the data", draw, settings.draws)):
        if value is not None and value not in known:
            raise UserError(f"The study has no {kind} {value}: choose from {', '.join(map(str, known))}.")
    seeds = settings.seeds[:1] if seed is None else (seed,)
    return replace(settings, methods=(label,), seeds=seeds, draws=settings.draws[:1] if draw is None else (draw,))


def _restore_last(folder: Path, key: LaneKey, settings: Settings) -> RestoredLane:
    """The lane's last state, if that is the state of the last round."""
    lane, rounds = f"{key.method}, seed {key.seed}, of {folder}", settings.plan.rounds
    found = load_lanes(folder, [key]).lanes.get(key) if (folder / "segments").is_dir() else None
    if found is None or found.state is None:
        raise UserError(f"There is no state of {lane} to export: let the study run to its end with --resume.")
    if found.end.failed:
        raise UserError(f"{lane} {found.end}: what did not reach the end is not exported.")
    if not found.end.complete(rounds):
        raise UserError(f"{lane} is at round {found.end.round_} of {rounds}: let the study run to its end with --resume.")
    return found


def _make_study_engine(folder: Path, study: Study) -> Engine:
    """An engine like the study's, on its device where that is here."""
    execution, routes = Execution.read(folder / "execution.json"), folder / "routes.json"
    if execution.device != "cpu" and resolve_device("auto") == "cpu":
        return make_engine(study.worlds, execution.engine, "cpu")
    pinned = read_json_strings(routes) if routes.exists() else None
    return make_engine(
        study.worlds, execution.engine, execution.device, pinned=pinned, precision=execution.precision, microbatch=execution.microbatch
    )


ONNX_FILE = "model.onnx"
ONNX_PACKAGES = ("onnx", "onnxscript")


class _OutputModule(nn.Module):
    """The model with its outputs as probabilities, or as numbers in the target's own units: which is what a site wants to know."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, x: Tensor) -> Tensor:
        response = compute_scores(self.model(x), self.task)
        return response * self.task.deviation + self.task.mean if self.task.name == "regression" else response


def check_onnx(bundle: Bundle | None = None) -> None:
    """Refuse before anything is written: where a package is missing, or a bundle has several models."""
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UserError(f"--onnx needs the package {missing[0]}: install it with pip install 'coterie[onnx]'.")
    if bundle is None:
        return
    if bundle.task.name == "next-token":
        raise UserError("--onnx writes models of classes, labels and numbers, not language models: omit --onnx.")
    if len(bundle.models) != 1:
        raise UserError(f"--onnx writes one model and {next(iter(bundle.clients))}'s bundle has {len(bundle.models)}: omit --onnx.")
    if bundle.several is not None:
        raise UserError(f"--onnx writes models of one input, and this takes {len(bundle.several.shapes)}: omit --onnx.")


def write_onnx(bundle: Bundle, path: Path) -> None:
    """Samples `x`, any number of them, to `probabilities`, or to `predictions` of a regression."""
    check_onnx(bundle)
    kind = torch.int64 if bundle.tokens else torch.float32
    example = torch.zeros(2, *bundle.input_shape, dtype=kind)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own making
            torch.onnx.export(
                _OutputModule(bundle.load(0), bundle.task).eval(),
                (example,),
                str(path),
                input_names=["x"],
                output_names=["predictions" if bundle.task.name == "regression" else "probabilities"],
                dynamic_shapes={"x": {0: torch.export.Dim("samples")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # torch raises many kinds for modules that it cannot write
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"The model {bundle.model!r} cannot be written as ONNX ({reason}): omit --onnx.") from error
    finally:
        quiet.setLevel(level)


ADAPTER_FOLDER = "adapter"  # the folder beside bundle.json
INNER_PREFIX = "inner."  # where `NextTokens` has the language model


def check_adapter(bundle: Bundle) -> None:
    """Refuse before anything is written: what has no adapters, or several models."""
    if not isinstance(bundle.module, NextTokens) or not _list_adapters(bundle):
        raise UserError(f"--peft writes the adapters of a language model, and {bundle.model!r} has none: omit --peft.")
    if len(bundle.models) != 1:
        raise UserError(f"--peft writes one adapter and {next(iter(bundle.clients))}'s bundle has {len(bundle.models)}: omit --peft.")


def write_adapter(bundle: Bundle, folder: Path) -> None:
    """`adapter_model.safetensors` and `adapter_config.json`."""
    check_adapter(bundle)
    bundle.load(0)
    adapters = _list_adapters(bundle)
    tensors: dict[str, Tensor] = {}
    for path, part in adapters.items():
        begin = f"base_model.model.{path}"
        tensors |= {f"{begin}.lora_A.weight": part.down.detach().clone(), f"{begin}.lora_B.weight": part.up.detach().clone()}
    first, spec = next(iter(adapters.values())), parse(bundle.model)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(spec.kwargs.get("folder", spec.args[0] if spec.args else "")),
        "r": len(first.down),
        "lora_alpha": first.scale * len(first.down),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({path.rpartition(".")[2] for path in adapters}),
        "inference_mode": True,
    }
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _list_adapters(bundle: Bundle) -> dict[str, LoraLinear]:
    """By the names that the language model has for its layers."""
    return {path.removeprefix(INNER_PREFIX): part for path, part in bundle.module.named_modules() if isinstance(part, LoraLinear)}
