"""Bundles: what an exported one answers is what the study measured, and what is damaged or foreign is refused in one sentence."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.arrays import Doubles
from coterie.core.serving import COMBINED, Mixture
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts
from coterie.data.joining import add_newcomers
from coterie.data.prepare import PrepOptions
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.export import load_served_models
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.messages import restrict_combiner
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online, OwnExpert
from coterie.methods.grouped import Groups
from coterie.run.execution import Execution
from integrity import reseal

METHODS = (
    "fedavg",
    "fedgroup(groups=2,pretrain=4)",
    "fesem(groups=2)",
    "ifca(groups=2)",
    "fedsim(clusters=2)",
    "fedex",
    "fedex(combiner=mean)",
    "ditto",
    "fedavg+finetune(epochs=1)",
)
DATA = {
    "digits": "digits/rotated(clients=6,groups=2)",
    "heart": "heart",
    "late": "digits/rotated(clients=6,groups=2)/arrivals(share=0.5,first=90,last=99)",
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name. In the last, half the clients are never there and others drop out."""
    root = tmp_path_factory.mktemp("studies")
    local = ct.Local(epochs=2, lr=0.1, max_steps=4)
    for name, data in DATA.items():
        plan = ct.Plan(rounds=2, local=local, dropout=0.3 if name == "late" else 0.0)
        ct.study(METHODS, data=data, seeds=[3, 0], plan=plan, out=root / name, execution=Execution(engine="loop"))
    return {name: root / name for name in DATA}


def hits(folder: Path, method: str, seed: int) -> Any:
    """(n, C) what the evidence of the last round counts."""
    frame = Evidence.open(folder).frame("clients")
    own = frame[(frame["method"] == method) & (frame["seed"] == seed) & (frame["round"] == 2)].sort_values("client")
    return own[[name for name in frame if str(name).startswith("hits_")]].to_numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", DATA)
def test_a_bundle_answers_as_the_study_measured(studies: dict[str, Path], name: str, method: str, tmp_path: Path) -> None:
    found = load_served_models(studies[name], method)
    federation, counted = found.federation, hits(studies[name], method, 3)
    for client, identity in enumerate(federation.ids):
        write_bundle(found.bundle([identity]), tmp_path / identity)
        bundle = read_bundle(tmp_path / identity)
        own = federation.test[client]
        answers = bundle.answer(federation.x[own])
        y = federation.y[own]
        assert np.bincount(y[answers.classes == y], minlength=len(federation.classes)).tolist() == counted[client].tolist()
        assert answers.probabilities.sum(axis=1) == pytest.approx(np.ones(len(own)))
        assert list(bundle.clients) == [identity]
        combined = method.startswith("fedex") and bundle.combiner is not None
        assert (answers.models == (COMBINED if combined else 0)).all()
        assert combined or len(bundle.models) == 1  # no other's model


def test_models_have_the_names_that_the_method_gives_them(studies: dict[str, Path]) -> None:
    folder = studies["digits"]
    for method in METHODS:
        found = load_served_models(folder, method)
        names = {name for identity in found.federation.ids for name in found.bundle([identity]).names}
        if method in ("fedavg", "fedsim(clusters=2)"):
            assert names == {"global"}
        elif method.startswith(("fedgroup", "fesem", "ifca", "fedex")):
            assert names <= {"group 0", "group 1", "global"}
        else:
            assert names == {f"own of {identity}" for identity in found.federation.ids}


def test_who_never_took_part_has_the_bundle_of_the_methods_own_cold_start(studies: dict[str, Path]) -> None:
    found = load_served_models(studies["late"], "ditto")
    assert found.federation.arrivals is not None
    late = [identity for identity, round_ in zip(found.federation.ids, found.federation.arrivals, strict=True) if round_ > 0]
    assert len(late) == 3
    assert {found.bundle([identity]).names for identity in late} == {("global",)}
    grouped = load_served_models(studies["late"], "fedgroup(groups=2,pretrain=4)")
    groups = grouped.lane.method.members(grouped.lane.state)
    assert groups is not None
    assert (groups[[grouped.federation.ids.index(identity) for identity in late]] == -1).all()
    assert all(grouped.bundle([identity]).names[0].startswith("group ") for identity in late)


def test_a_bundle_of_several_clients_knows_each_and_no_other(studies: dict[str, Path], tmp_path: Path) -> None:
    found = load_served_models(studies["heart"], "ditto", seed=0)
    write_bundle(found.bundle(["va", "cleveland"]), tmp_path / "b")
    bundle = read_bundle(tmp_path / "b")
    assert list(bundle.clients) == ["va", "cleveland"]
    assert bundle.origin == Origin("ditto", "heart", 0, 0, 2)
    assert set(bundle.scaling) == {"va", "cleveland"}
    x = found.federation.x[:5]
    alone = {name: found.bundle([name]).answer(x).probabilities for name in bundle.clients}
    assert all((bundle.answer(x, name).probabilities == alone[name]).all() for name in bundle.clients)
    assert (alone["va"] != alone["cleveland"]).any()
    with pytest.raises(UserError, match="does not know client 'hungary': it has 2 models for va, cleveland"):
        bundle.answer(x, "hungary")
    with pytest.raises(UserError, match="Name the client"):
        bundle.answer(x)


def test_one_model_answers_for_anybody(studies: dict[str, Path]) -> None:
    bundle = load_served_models(studies["heart"], "fedavg").bundle(["va"])
    x = np.zeros((2, 13))
    assert (bundle.answer(x, "nobody").probabilities == bundle.answer(x).probabilities).all()
    with pytest.raises(UserError, match="does not know how client 'nobody' scales its rows: it has the scaling of va"):
        bundle.scaled(x, "nobody")


def test_exporting_changes_nothing_in_the_study(studies: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(studies["heart"], folder)
    (folder / "segments" / ".draft-000099").mkdir()  # of a run that was killed
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    load_served_models(folder, "fedavg")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("fedprox", {}, "The study has no method 'fedprox'"),
        ("fedex", {"seed": 7}, "has no seed 7: choose from 3, 0"),
        ("fedavg", {"draw": 7}, "has no draw of the data 7"),
    ],
)
def test_a_lane_that_is_not_there_is_refused(studies: dict[str, Path], method: str, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_served_models(studies["heart"], method, **options)  # type: ignore[arg-type]


def test_a_bare_name_is_enough_where_it_is_the_only_one(studies: dict[str, Path]) -> None:
    assert load_served_models(studies["heart"], "ifca").lane.key.method == "ifca(groups=2)"


def test_a_lane_that_is_not_at_its_end_is_refused(studies: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(studies["heart"], folder)
    settings = json.loads((folder / "settings.json").read_text())
    settings["plan"]["rounds"] = 5
    (folder / "settings.json").write_text(json.dumps(settings))
    reseal(folder)
    with pytest.raises(UserError, match="is at round 2 of 5: let the study run to its end with resume=True"):
        load_served_models(folder, "fedavg")
    for path in folder.rglob("states.safetensors"):
        path.unlink()
    with pytest.raises(UserError, match="There is no state of fedavg, seed 3"):
        load_served_models(folder, "fedavg")
    shutil.rmtree(folder / "segments")
    reseal(folder)
    with pytest.raises(UserError, match="There is no state of fedavg, seed 3"):
        load_served_models(folder, "fedavg")


def test_a_lane_that_diverged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ct.NothingFinishedError):
        ct.study("fedprox(mu=1e30)", data="heart", rounds=2, out=tmp_path / "study")
    with pytest.raises(UserError, match=r"fedprox\(mu=1e30\), seed 0, of .* (diverged|to export)"):
        load_served_models(tmp_path / "study")


def test_other_data_than_the_studys_are_refused(studies: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The data of 'heart' are not those of .* \(features, parts differ\)"):
        load_served_models(studies["heart"], "fedavg", federation=ct.load("heart(test=0.5)"))
    heart = ct.load("heart")
    x = heart.x.copy()
    x[0, 0] += 1e-3  # the same clients, the same sizes
    with pytest.raises(UserError, match=r"The data of 'heart' are not those of .* \(features differ\)"):
        load_served_models(studies["heart"], "fedavg", federation=replace(heart, x=x))
    with pytest.raises(UserError, match=r"\(labels differ\)"):
        load_served_models(
            studies["heart"], "fedavg", federation=replace(heart, y=1 - heart.y), newcomers=replace(heart, ids=("a", "b", "c", "d"))
        )
    copy = tmp_path / "study"
    shutil.copytree(studies["heart"], copy)
    (copy / "data.json").unlink()
    with pytest.raises(UserError, match="The clients of 'heart' are not those of"):
        load_served_models(reseal(copy), "fedavg", federation=ct.load("heart(test=0.5)"))


@dataclass(frozen=True)
class Foreign:
    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return np.asarray(probabilities[0])


def bundle_of(combiner: Any, clients: dict[str, int], models: int = 2) -> Bundle:
    vectors = np.random.default_rng(0).normal(size=(models, 3 * 2 + 2)).astype(np.float32)
    names = tuple(f"group {j}" for j in range(models))
    return Bundle(Origin("m", "d", 0, 0, 1), "mclr", (3,), ("no", "yes"), vectors, names, clients, combiner)


COMBINERS = {
    "online": Online(per_class=True, weights=np.full((2, 2), 0.5)),
    "mean": Mean(),
    "confident": MostConfident(),
    "gate": AccuracyGate(np.array([[0.25, 0.5], [0.75, 0.5]])),
    "mixture": Mixture(np.array([[0.2, 0.8], [1.0, 0.0]])),
    "own": OwnExpert(np.array([1, 0])),
    "by row": ByRow((Mean(), Mixture(np.array([[0.2, 0.8], [1.0, 0.0]])))),
}


@pytest.mark.parametrize("name", COMBINERS)
def test_combiners_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    bundle = bundle_of(COMBINERS[name], {"z": COMBINED, "a": COMBINED})  # not in alphabetical order: places are by order
    write_bundle(bundle, tmp_path / "b")
    again = read_bundle(tmp_path / "b")
    x = np.random.default_rng(1).normal(size=(9, 3))
    for client in ("z", "a"):
        assert again.answer(x, client).probabilities.tobytes() == bundle.answer(x, client).probabilities.tobytes()
    if name in ("mixture", "own", "by row"):
        assert (again.answer(x, "z").probabilities != again.answer(x, "a").probabilities).any()


@pytest.mark.parametrize("name", COMBINERS)
def test_a_client_is_given_its_own_part_of_a_combiner_only(name: str) -> None:
    combiner: Any = COMBINERS[name]
    own: Any = restrict_combiner(combiner, np.array([1]))
    given = np.random.default_rng(2).dirichlet([1, 1], size=(2, 5))
    assert own.combine(given, 0).tobytes() == combiner.combine(given, 1).tobytes()
    held = {"mixture": "weights", "own": "experts", "by row": "combiners"}
    assert name not in held or len(getattr(own, held[name])) == 1


def test_a_combiner_that_no_reader_would_know_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot carry the combiner of 'm'.*Foreign"):
        write_bundle(bundle_of(Foreign(), {"a": COMBINED}), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def reported(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        head = json.loads((folder / "bundle.json").read_text()) | changes
        (folder / "bundle.json").write_text(json.dumps(head))

    return damage


def prepared_as(name: str, mean: Sequence[float] = (0.0,)) -> dict[str, Any]:
    scalings = {"": {"mean": list(mean), "deviation": [1.0]}}
    return {"columns": [{"name": name, "words": None}], "wishes": PrepOptions(scale="standard").to_dict(), "scalings": scalings}


def worded_as(**changes: Any) -> dict[str, Any]:
    return {"column": "says", "wording": {"features": "bag", "width": 3, **changes}}


def cut(folder: Path) -> None:
    data = (folder / "models.safetensors").read_bytes()
    (folder / "models.safetensors").write_bytes(data[:-1])


def flipped(folder: Path) -> None:
    data = bytearray((folder / "models.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "models.safetensors").write_bytes(bytes(data))


def written(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (cut, "models.safetensors is not what bundle.json was written with"),
    "a bit changed": (flipped, "models.safetensors is not what bundle.json was written with"),
    "another hash": (reported(sha256="0" * 64), "it is damaged or was changed"),
    "no models": (lambda folder: (folder / "models.safetensors").unlink(), r"models.safetensors cannot be read \(No such file"),
    "no head": (lambda folder: (folder / "bundle.json").unlink(), "holds no bundle: name the folder"),
    "not JSON": (written("bundle.json", "{"), "bundle.json cannot be read"),
    "something else's": (written("bundle.json", "[1]"), "is no bundle's"),
    "deep": (written("bundle.json", "[" * 100_000), "bundle.json cannot be read"),
    "later format": (reported(format=2), "is of format 2, this version reads 1: use the version that made it"),
    "unknown field": (reported(more=1), "is wrong at more"),
    "no name for classes": (reported(classes="ab"), "is wrong at classes"),
    "unknown combiner": (reported(combiner={"state": "Evil", "fields": {}}), "a combiner of kind 'Evil', which this version does not know"),
    "combiner without its numbers": (reported(combiner={"state": "AccuracyGate", "fields": {"weights": {"array": "x"}}}), "cannot be read"),
    "combiner with wrong fields": (reported(combiner={"state": "Mean", "fields": {"a": {"value": 1}}}), "cannot be read"),
    "tree of nothing": (reported(combiner={}), "cannot be read"),
    "a row too many": (reported(clients=[{"id": "a", "row": 2}]), "clients are served models that are not among its 2"),
    "nobody combines": (reported(combiner=None), "clients are served models that are not among its 2"),
    "a name too few": (reported(names=["one"]), "contradicts itself"),
    "another model": (reported(model="mlp(4)"), "models of 8 numbers where 'mlp\\(4\\)' has 26"),
    "a huge model": (reported(model="mlp(1000000000)"), "models of 8 numbers where"),
    "an impossible model": (reported(model="mlp(-1)"), "mlp"),
    "other inputs": (reported(input_shape=[4]), "models of 8 numbers where 'mclr' has 10"),
    "names of features": (reported(features=["a"]), "1 features named where the model takes 3"),
    "a scaling of other features": (reported(scaling={"a": {"mean": [0.0], "deviation": [1.0]}}), "a scaling that is not of 3 features"),
    "a scaling that is no number": (reported(scaling={"a": {"mean": [float("nan")], "deviation": [1.0]}}), "is wrong at scaling"),
    "a preparation of nothing": (reported(preparation={}), "cannot be read"),
    "a preparation that is no object": (reported(preparation=["a"]), "is wrong at preparation"),
    "a preparation of other features": (reported(preparation=prepared_as("z")), "a preparation that makes other features than it names"),
    "statistics of other features": (reported(preparation=prepared_as("a", mean=[])), "statistics that are not of 1 features"),
    "statistics that are no numbers": (reported(preparation=prepared_as("a", mean=[float("inf")])), "statistics that are no numbers"),
    "texts for another model": (reported(worded=worded_as(width=1 << 50)), "texts that become other features than the model takes"),
    "texts in no width": (reported(worded=worded_as(width="wide")), "cannot be read"),
    "texts by a list of words": (reported(worded=worded_as(words="/etc/passwd")), "a wording with a list of words of its own"),
    "code to run": (reported(model="os:system('true')"), r"needs code that is not Coterie's, the model .*os:system"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_or_foreign_is_one_sentence(name: str, tmp_path: Path) -> None:
    write_bundle(bundle_of(Mean(), {"a": COMBINED}), tmp_path / "b")
    damage, sentence = DAMAGES[name]
    damage(tmp_path / "b")
    with pytest.raises(UserError, match=sentence) as caught:
        read_bundle(tmp_path / "b")
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_of_the_users_own_is_built_only_if_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n\ndef net(input_shape, outputs) -> nn.Module:\n    return nn.Linear(input_shape[0], outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    write_bundle(replace(bundle_of(None, {"a": 0}), model="own_net:net"), tmp_path / "b")
    with pytest.raises(UserError, match="if you trust it, add trust=True"):
        read_bundle(tmp_path / "b")
    assert read_bundle(tmp_path / "b", "own_net:net").answer(np.zeros((1, 3))).classes.shape == (1,)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((2, 4)), r"have shape \(4,\): the model takes numbers of shape \(3,\)"),
        (np.zeros(3), "have shape"),
        (np.array([["a", "b", "c"]]), "have type"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), "Sample 1 holds a value that is no finite number"),
    ],
)
def test_samples_that_do_not_fit_are_refused(x: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        bundle_of(None, {"a": 0}).answer(x)


def test_no_samples_have_no_answers() -> None:
    assert bundle_of(None, {"a": 1}).answer(np.zeros((0, 3))).probabilities.shape == (0, 2)


def test_tokens_stay_whole() -> None:
    bundle = replace(bundle_of(None, {"a": 0}, 1), tokens=True)
    with pytest.raises(UserError, match="should be whole numbers"):
        bundle.answer(np.full((1, 3), 0.5))


def test_a_folder_in_use_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    with pytest.raises(UserError, match="is not empty: choose another out="):
        write_bundle(bundle_of(None, {"a": 0}), tmp_path / "b")
    with pytest.raises(UserError, match="Cannot write to"):
        write_bundle(bundle_of(None, {"a": 0}), tmp_path / "b" / "mine" / "deeper")


def newcomers(ids: tuple[str, ...] = ("new-0", "new-1"), **changes: Any) -> Federation:
    """Two more clients of another draw of rotated digits, one of each rotation."""
    made = load("digits/rotated(clients=6,groups=2)", 7)
    assert made.groups is not None
    chosen = np.array([np.flatnonzero(made.groups == group)[0] for group in (0, 1)])
    parts: dict[str, Any] = {name: Parts.from_lists([made.part(name)[int(client)] for client in chosen]) for name in ("train", "test")}
    return replace(made, ids=ids, groups=None, **parts, **changes)


@pytest.mark.parametrize("method", METHODS)
def test_newcomers_have_the_bundle_of_the_methods_own_cold_start(studies: dict[str, Path], method: str) -> None:
    new = newcomers()
    found = load_served_models(studies["digits"], method, newcomers=new)
    for place, identity in enumerate(new.ids):
        bundle = found.bundle([identity])
        assert list(bundle.clients) == [identity]
        own = new.test[place]
        assert bundle.answer(new.x[own]).probabilities.shape == (len(own), 10)
    if method == "fedavg":
        assert (found.bundle(["new-0"]).models == load_served_models(studies["digits"], method).bundle(["client-0"]).models).all()


def test_newcomers_join_the_group_that_fits_them(studies: dict[str, Path]) -> None:
    """By hand: IFCA's newcomer gets the model of the least loss on its training part."""
    new, method = newcomers(), "ifca(groups=2)"
    found = load_served_models(studies["digits"], method, newcomers=new)
    state, world = found.lane.state, World.from_spec(new, "mclr")
    assert isinstance(state, Groups)
    models = state.models
    for place, identity in enumerate(new.ids):
        own = new.train[place]
        losses = [_mean_loss(world, model, new.x[own], new.y[own]) for model in models]
        assert (found.bundle([identity]).models[0] == models[int(np.argmin(losses))]).all()


def _mean_loss(world: World, model: Any, x: Any, y: Any) -> float:
    bundle = Bundle(
        Origin("m", "d", 0, 0, 1), "mclr", world.federation.input_shape, world.federation.classes, model[None], ("m",), {"c": 0}
    )
    return float(-np.log(bundle.answer(x).probabilities[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize(
    ("new", "answers_with"),
    [
        (lambda: newcomers(("client-0", "new-1")), "there is a client 'client-0' already"),
        (lambda: newcomers(classes=(*"012345678", "ten")), "they have a class 'ten', the others have 0"),
        (lambda: load("heart"), r"their samples have shape \(13,\)"),
    ],
)
def test_newcomers_that_do_not_fit_are_refused(studies: dict[str, Path], new: Callable[[], Federation], answers_with: str) -> None:
    with pytest.raises(UserError, match=answers_with):
        load_served_models(studies["digits"], "fedavg", newcomers=new())


def test_newcomers_by_command(tmp_path: Path) -> None:
    """A hospital that was not part of the study."""
    frame = pd.DataFrame(load("heart").x[:30], columns=[f"x{i}" for i in range(13)])
    frame["ill"], frame["ward"] = np.where(load("heart").y[:30] == 1, "present", "absent"), "new ward"
    frame.to_csv(tmp_path / "new.csv", index=False)
    run = ["run", "fedavg", "fedgroup(groups=2,alpha=2)", "--data", "heart", "--rounds", "1", "--out", str(tmp_path / "study")]
    assert CliRunner().invoke(app, run).exit_code == 0
    words = ["export", str(tmp_path / "study"), "--method", "fedgroup", "--newcomers", f"csv({tmp_path / 'new.csv'},label=ill,client=ward)"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "bundle")])
    assert done.exit_code == 0, done.output
    assert "The bundle of new ward (group " in done.output
    assert list(read_bundle(tmp_path / "bundle").clients) == ["new ward"]
    wrong = CliRunner().invoke(app, [*words, "--client", "va", "--out", str(tmp_path / "other")])
    assert wrong.exit_code == 2 or isinstance(wrong.exception, UserError)


def test_classes_of_newcomers_are_taken_by_name() -> None:
    new = newcomers(classes=tuple("9876543210"))
    both = add_newcomers(load("digits/rotated(clients=6,groups=2)"), new)
    for place in range(2):
        named = [both.classes[y] for y in both.y[both.train[6 + place]]]
        assert named == [new.classes[y] for y in new.y[new.train[place]]]
        assert (both.x[both.test[6 + place]] == new.x[new.test[place]]).all()
