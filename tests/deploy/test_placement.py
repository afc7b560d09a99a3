"""New clients placed from their own files, and models and groups straight from a result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from cli.test_commands import coterie
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.deploy.bundle.export import load_served_models
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.bundle.placement import DRAWS, add_halves, find_label_column, load_newcomer, place_newcomer
from coterie.testing.worlds import make_federation

WISHES = "drop=id,categories=onehot,impute=mean,scale=standard"
Run = Callable[..., tuple[int, str, str]]


def people(sites: range, rows: int = 40) -> pd.DataFrame:
    """Odd sites have the opposite sign in one column: two groups that cannot be missed."""
    frames = []
    for site in sites:
        rng = np.random.default_rng(site)
        x = rng.normal(size=(rows, 2))
        sign = 1 if site % 2 else -1
        frame = pd.DataFrame({"site": f"s{site}", "a": 1000 * x[:, 0], "b": x[:, 1], "job": rng.choice(["u", "v"], rows)})
        frames.append(frame.assign(ill=np.where(sign * x[:, 0] + 0.3 * x[:, 1] > 0, "yes", "no")))
    made = pd.concat(frames, ignore_index=True)
    made.loc[1::17, "b"] = np.nan
    return made.assign(id=range(len(made)))


@pytest.fixture(scope="module", params=["federated", "client"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("placing")
    people(range(6)).to_csv(root / "people.csv", index=False)
    spec = f"csv('{root / 'people.csv'}',label=ill,client=site,{WISHES},statistics={request.param})"
    methods = ["fedavg", "fedgroup(groups=2,pretrain=4)", "fedavg+finetune(epochs=1)"]
    ct.study(methods, data=spec, rounds=4, lr=0.2, epochs=3, out=root / "run")
    people(range(7, 8)).to_csv(root / "odd.csv", index=False)
    people(range(8, 9)).drop(columns=["site"]).to_csv(root / "even.csv", index=False)
    return root


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *words: coterie(capfd, monkeypatch, *map(str, words))


def test_a_table_in_memory_is_placed_like_its_file(folder: Path, tmp_path: Path) -> None:
    """By a result of this process and by one that is read from a folder, and as the command does it."""
    settings: dict[str, Any] = {"rounds": 4, "lr": 0.2, "epochs": 3}
    spec = f"csv('{folder / 'people.csv'}',label=ill,client=site,{WISHES})"
    run = ct.study("fedgroup(groups=2,pretrain=4)", data=spec, out=tmp_path / "run", **settings)
    odd = people(range(7, 8)).drop(columns="site")
    asked: dict[str, Any] = {"client": "odd", "label": "ill"}
    here, read = ct.place(run, odd, **asked), ct.place(ct.Result(ct.Evidence.open(tmp_path / "run")), odd, **asked)
    known = load(spec)
    filed = place_newcomer(
        load_newcomer(folder / "odd.csv", known, "odd", "ill", 0.3),
        lambda new: load_served_models(tmp_path / "run", federation=known, newcomers=new),
    )
    for found in (here, read):
        assert (found.model, found.hits, found.same) == (filed.model, filed.hits, filed.same)
        assert np.array_equal(found.bundle.models, filed.bundle.models)
    assert here.model == ct.get_bundle(run, "s3").names[0]  # with the odd
    with pytest.raises(UserError, match="The table of 'odd' has no label column 'sick'"):
        ct.place(run, odd, client="odd", label="sick")
    with pytest.raises(UserError, match="no draw of the data 3"):
        ct.place(run, odd, draw=3, **asked)


def test_new_clients_are_placed_with_their_like(folder: Path, run: Run, tmp_path: Path) -> None:
    groups = ct.Result(ct.Evidence.open(folder / "run")).groups
    last = groups[groups["round"] == 4].set_index("id")["group"]
    assert last["s1"] == last["s3"] == last["s5"] != last["s0"]
    for name, like in (("odd", "s1"), ("even", "s0")):
        code, out, err = run(
            "place", folder / "run", "--method", "fedgroup", "--data", folder / f"{name}.csv", "--out", tmp_path / name, "--json"
        )
        assert code == 0, err
        found = json.loads(out.splitlines()[-1])
        assert found["model"] == f"group {last[like]}"
        assert (found["client"], found["placed_by"], found["judged"], found["halves"]) == (name, 28, 12, 20)
        assert found["same"] >= 18
        assert found["low"] < found["accuracy"] < found["high"] or found["accuracy"] == 1
        assert found["accuracy"] > 0.6
        assert f"Expected accuracy {100 * found['accuracy']:.1f} %" in err
        bundle = read_bundle(tmp_path / name)
        frame = pd.read_csv(folder / f"{name}.csv")
        assert (bundle.predict(frame) == frame["ill"]).mean() > 0.6


def test_methods_without_a_choice_say_so(folder: Path, run: Run) -> None:
    for method in ("fedavg", "fedavg+finetune(epochs=1)"):
        code, out, err = run("place", folder / "run", "--method", method, "--data", folder / "odd.csv", "--json")
        assert code == 0, err
        assert json.loads(out.splitlines()[-1])["same"] is None
        assert "There was no choice to make" in err


def test_bad_files_are_one_sentence(folder: Path, run: Run, tmp_path: Path) -> None:
    frame = pd.read_csv(folder / "odd.csv")
    wrongs = {
        "no label column 'ill'": frame.drop(columns="ill"),
        "holds the label 'maybe'": frame.assign(ill="maybe"),
        "lacks the column 'b'": frame.drop(columns="b"),
        "holds 3 rows: a client is placed by 4 or more": frame[:3],
    }
    for sentence, wrong in wrongs.items():
        wrong.to_csv(tmp_path / "wrong.csv", index=False)
        code, _, err = run("place", folder / "run", "--method", "fedavg", "--data", tmp_path / "wrong.csv")
        assert code == 2
        assert sentence in err
        assert "Traceback" not in err
    code, _, err = run("place", folder / "run", "--method", "fedavg", "--data", tmp_path / "nowhere.csv")
    assert (code, "There is no file" in err) == (2, True)
    assert find_label_column("digits/iid") is None


def test_halves_are_halves_of_the_same_client() -> None:
    new = make_federation((9,))
    several = add_halves(new)
    assert len(several) == 1 + DRAWS
    assert several.train.sizes.tolist() == [9, *([5] * DRAWS)]
    assert all(set(part) <= set(new.train[0]) for part in several.train)
    assert len({tuple(sorted(part)) for part in several.train}) > DRAWS // 2
    assert several.test.sizes.tolist() == [4, *([0] * DRAWS)]
    with pytest.raises(UserError, match="has 1 row to be placed by"):
        add_halves(make_federation((1,)))


def test_arrays_and_sites_that_scale_their_own(tmp_path: Path) -> None:
    ct.study("fedavg", data="heart", rounds=1, out=tmp_path / "run")
    known = load("heart")
    np.savez(tmp_path / "new.npz", x=known.x[:20] * 7 + 3, ill=known.y[:20])
    new = load_newcomer(tmp_path / "new.npz", known, "x", "ill", 0.25)
    assert new.x[new.train[0]].mean(0) == pytest.approx(0, abs=1e-5)  # in its own training units
    found = place_newcomer(new, lambda several: load_served_models(tmp_path / "run", newcomers=several))
    assert (found.placed_by, found.judged, found.model) == (15, 5, "global")
    assert set(found.bundle.scaling) == {"x"}


def test_a_result_gives_models_and_groups_without_a_folder(tmp_path: Path) -> None:
    made = make_federation((12, 7, 5, 9))
    methods: list[ct.Method[Any]] = [ct.FedAvg(), ct.FedGroup(groups=2, pretrain=3)]
    inside = ct.study(methods, data=made, rounds=2, seeds=(0, 1))
    written = ct.study(methods, data=made, rounds=2, seeds=(0, 1), out=tmp_path / "run")
    bundle = ct.get_bundle(inside, "client-2", "fedgroup", seed=1)
    exported = load_served_models(tmp_path / "run", "fedgroup", seed=1, federation=made).bundle(["client-2"])
    again = ct.get_bundle(written, "client-2", "fedgroup", seed=1)
    x = made.x[made.test[2]]
    assert bundle.predict_proba(x).tobytes() == exported.predict_proba(x).tobytes() == again.predict_proba(x).tobytes()
    frame = inside.groups
    assert list(frame) == ["draw", "method", "seed", "round", "client", "id", "group"]
    assert len(frame) == 2 * 3 * 4  # seeds, rounds with the start, clients
    assert set(frame["id"]) == set(made.ids)
    assert ct.get_bundle(inside, "client-2").origin.method == "fedavg"  # nothing is significantly ahead of the baseline
    once = ct.study(methods, data=made, rounds=2)
    with pytest.raises(UserError, match="too few runs to recommend one of its methods: name one with method="):
        ct.get_bundle(once, "client-2")
    with pytest.raises(UserError, match="Unknown client 'client-9'"):
        ct.get_bundle(inside, "client-9", "fedavg")
    with pytest.raises(ct.NothingFinishedError) as caught:
        ct.study("fedprox(mu=1e30)", data=made, rounds=4, epochs=4)
    with pytest.raises(UserError, match="did not reach the end"):
        ct.get_bundle(caught.value.result, "client-2")


def test_groups_are_shown_by_name(folder: Path, run: Run, tmp_path: Path) -> None:
    code, out, _ = run("show", folder / "run", "--groups", "--out", tmp_path / "groups.csv")
    assert code == 0
    assert ": s1, s3, s5" in out
    table = pd.read_csv(tmp_path / "groups.csv")
    assert list(table) == ["draw", "method", "seed", "round", "client", "group"]
    ct.study("fedavg", data=make_federation(), rounds=1, out=tmp_path / "one")
    assert "No method of the study keeps groups." in run("show", tmp_path / "one", "--groups")[1]


def test_a_newcomer_of_local_is_trained_on_its_own_rows(folder: Path, run: Run, tmp_path: Path) -> None:
    """The model that training began with is right by chance alone: it is no model to hand out."""
    ct.study(
        "local", data=f"csv('{folder / 'people.csv'}',label=ill,client=site,{WISHES})", rounds=6, lr=0.2, epochs=3, out=tmp_path / "run"
    )
    code, out, err = run("place", tmp_path / "run", "--data", folder / "odd.csv", "--out", tmp_path / "own", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["accuracy"] > 0.8
    frame = pd.read_csv(folder / "odd.csv")
    assert (read_bundle(tmp_path / "own").predict(frame) == frame["ill"]).mean() > 0.8


def test_a_client_that_never_trained_has_no_model(tmp_path: Path) -> None:
    made = make_federation((12, 7, 5, 9))
    result = ct.study("local", data=made, rounds=1, cohort=1)
    last = result.clients[result.clients["round"] == 1].set_index("id")["loss"]
    first = result.clients[result.clients["round"] == 0].set_index("id")["loss"]
    (trained,) = [name for name in made.ids if last[name] != first[name]]
    assert ct.get_bundle(result, trained).names
    for name in set(made.ids) - {trained}:
        with pytest.raises(UserError, match="has no trained model"):
            ct.get_bundle(result, name)


def test_the_folder_of_a_comparison_gives_the_recommended_model(folder: Path, run: Run, tmp_path: Path) -> None:
    """Without --method: controls are passed over, and the command says which method it took and why."""
    spec = f"csv('{folder / 'people.csv'}',label=ill,client=site,{WISHES})"
    compared = ct.compare("fedgroup(groups=2,pretrain=4)", data=spec, rounds=4, lr=0.2, epochs=3, draws=6, out=tmp_path / "all")
    (chosen,) = compared.recommendations().values()
    assert chosen is not None
    assert compared.federations[0].roles.of[chosen.label] != "control"
    best = max(own.scores["last10"].mean for own in compared.federations[0].methods.values() if own.role != "control")
    assert compared.federations[0].methods[chosen.label].scores["last10"].mean >= best - 0.005
    code, out, err = run("place", tmp_path / "all", "--data", folder / "odd.csv", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["recommended"] == chosen.label
    assert f"Recommended: {chosen.name}" in err
    code, out, err = run("export", tmp_path / "all", "--client", "s1", "--out", tmp_path / "bundle")
    assert code == 0, err
    assert read_bundle(tmp_path / "bundle").origin.method == chosen.label
    assert f"Recommended: {chosen.name}" in out
    code, out, err = run("predict", tmp_path / "all", "--client", "s1", "--data", folder / "odd.csv", "--label", "ill")
    assert code == 0, err
    assert f"Recommended: {chosen.name}" in out
    code, _, err = run("predict", tmp_path / "all", "--data", folder / "odd.csv")
    assert (code, "--client NAME" in err) == (2, True)
