"""The comparison of rivals: what is declared, a small run of it from pieces to page, and the page against the tables beside it."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coterie._util.errors import UserError
from coterie.data.catalogue import is_data_spec, load
from coterie.engines.device import DeviceError
from study_scripts import ROOT, script

rivals = script("rivals")
tables = script("rivals_tables")
scores = script("rivals_scores")
claims = script("rivals_claims")
number = script("rivals_number")
measured = script("rivals_measured")
page = script("rivals_page")
SMALL = ("iid", "rotation-4", "newcomers")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Three worlds and methods in other draws than the study's, for a few rounds: the folder, and the tables."""
    out = tmp_path_factory.mktemp("rivals")
    with pytest.MonkeyPatch.context() as patch:
        for module in (rivals, tables):
            patch.setattr(module, "FIRST", 500)
            patch.setattr(module, "DRAWS", 3)
        patch.setattr(tables, "POINTS", [500, 501, 502])
        patch.setattr(rivals, "TUNING", (590,))
        for name in SMALL:
            world = dataclasses.replace(rivals.WORLDS[name], rounds=12, evaluate_every=2 if name == "newcomers" else 1)
            patch.setitem(rivals.WORLDS, name, world)
            for method in ("fedavg", "local", "ifca", "ditto", "fedex"):
                if rivals.find_reason_not_to_run(rivals.METHODS[method], world) is None:
                    assert rivals.run_piece(rivals.Piece(name, method, out), "run") is None
        tables.collect(out, out / "tables")
    return out, scores.Tables.read(out / "tables")


def test_every_world_and_method_is_named_and_worlds_can_be_read() -> None:
    assert set(scores.NAMES) == set(rivals.METHODS)
    assert set(page.CLAIMS) <= set(rivals.METHODS)
    assert all(world in rivals.WORLDS for entry in rivals.METHODS.values() for world in entry.home)
    readable = [world for world in rivals.WORLDS.values() if "labelled=" not in world.data]
    assert all(is_data_spec(data) for world in readable for data in (world.data, world.tuning_data))


@pytest.mark.parametrize("name", [name for name, world in rivals.WORLDS.items() if re.match("digits|synthetic|heart", world.data)])
def test_worlds_of_embedded_data_load_with_validation_parts(name: str) -> None:
    world = rivals.WORLDS[name]
    assert load(world.data, data_seed=rivals.FIRST).validation is None
    tuning = load(world.tuning_data, data_seed=rivals.TUNING[0])
    assert tuning.validation is not None
    assert sum(map(len, tuning.validation)) > 0


def test_all_methods_have_six_trials_a_stage_on_draws_that_are_not_compared(small: tuple[Path, Any]) -> None:
    assert not set(rivals.TUNING) & set(range(rivals.FIRST, rivals.FIRST + rivals.DRAWS))
    for path in (small[0] / "choices").glob("*/*.json"):
        for stage, chosen in json.loads(path.read_text()).items():
            if chosen["spec"] is not None:
                assert len(chosen["trials"]) == 6, (path, stage)
                best = max(score for _, _, score in chosen["trials"] if score is not None)
                assert [chosen["spec"], chosen["rate"], best] in chosen["trials"]


def test_a_method_that_trains_two_models_has_half_the_rounds(small: tuple[Path, Any]) -> None:
    costs = small[1].costs.set_index(["world", "method", "stage"])
    assert costs.loc[("iid", "fedavg", "tuned"), "rounds"] == 12
    assert costs.loc[("iid", "ditto", "tuned"), "rounds"] == 6


def test_stages_are_those_declared(small: tuple[Path, Any]) -> None:
    keys = small[1].accuracies
    assert {("iid", "ifca", stage, control) for stage in ("served", "tuned") for control in ("", "random")} <= set(keys)
    assert ("iid", "local", "served", "") not in keys  # it serves what clients have trained
    assert ("newcomers", "local", "tuned", "") not in keys
    refused = small[1].not_run.set_index(["method", "stage"]).loc[("fedex", "tuned"), "why"]
    assert "cannot be fine-tuned" in str(refused)


def test_a_score_is_the_mean_of_the_last_ten_rounds(small: tuple[Path, Any]) -> None:
    with np.load(small[0] / "pieces" / "rotation-4" / "ifca.npz") as file:
        curve, hits, tests = (file[f"served/{name}"] for name in ("curve", "hits", "tests"))
    assert hits.sum(axis=1) / tests.sum(axis=1) == pytest.approx(curve[:, -10:].mean(axis=1), abs=1e-5)
    assert small[1].accuracies["rotation-4", "ifca", "served", ""] == pytest.approx(curve[:, -10:].mean(axis=1), abs=1e-5)


def test_equal_bytes_are_read_where_fedavg_has_sent_as_many(small: tuple[Path, Any]) -> None:
    """IFCA with k models sends k down for losses, a few numbers back, then one down and one up, where FedAvg sends one and one."""
    with np.load(small[0] / "pieces" / "rotation-4" / "ifca.npz") as file:
        curve = file["served/curve"]
        groups = int(json.loads(bytes(file["stored"]))["variants"]["served"]["spec"].partition("groups=")[2].partition(")")[0])
    model = 65 * 10  # numbers
    last = 12 * 2 * model // ((groups + 2) * model + groups)
    wanted = curve[:, max(last - 9, 1) : last + 1].mean(axis=1)
    assert small[1].at_equal_bytes["rotation-4", "ifca", "served", ""] == pytest.approx(wanted, abs=1e-4)


def test_bytes_are_those_of_the_evaluated_rounds(small: tuple[Path, Any]) -> None:
    with np.load(small[0] / "pieces" / "newcomers" / "fedavg.npz") as file:
        curve, sent = file["served/curve"], file["served/bytes"]
    assert curve.shape == sent.shape == (3, 7)  # the start and every second of 12 rounds
    assert sent[:, -1] == pytest.approx(6 * sent[:, 1])


def test_gains_by_hand(small: tuple[Path, Any]) -> None:
    """The interval is the wider of Student's over draws and over clients; Holm's correction over the methods of the world and stage."""
    found = small[1].judged["rotation-4", "tuned"]
    p_values = []
    for method, one in found.items():
        gained = small[1].accuracies["rotation-4", method, "tuned", ""] - small[1].accuracies["rotation-4", "fedavg", "tuned", ""]
        row = small[1].get_row("rotation-4", method, "tuned", "fedavg")
        draws = stats.t.interval(0.95, len(gained) - 1, gained.mean(), stats.sem(gained))
        clients = stats.t.interval(0.95, row["degrees"], row["mean"], row["error"])
        assert one.gap.mean == pytest.approx(gained.mean(), abs=1e-9)
        assert (one.gap.low, one.gap.high) == pytest.approx((min(draws[0], clients[0]), max(draws[1], clients[1])), abs=1e-9)
        p_values.append(one.gap.p)
        assert one.outcome in ("worse", "same", "unclear", "unproven")  # of three draws none is significantly better
    assert len(p_values) == 3


def test_regret_and_ranks_by_hand(small: tuple[Path, Any]) -> None:
    means = {key[1]: own.mean() for key, own in small[1].accuracies.items() if key[0] == "iid" and key[2:] == ("tuned", "")}
    regrets = small[1].compute_regrets("tuned")
    for method, mean in means.items():
        assert regrets[method][0] == pytest.approx(max(means.values()) - mean)
    ranking, worlds, left_out = small[1].compute_ranking("served")
    assert ranking.methods == ("fedavg", "fedex", "ifca")
    assert worlds == list(SMALL)
    ranks = [stats.rankdata([-small[1].accuracies[world, name, "served", ""].mean() for name in ranking.methods]) for world in worlds]
    assert ranking.ranks == pytest.approx(np.mean(ranks, axis=0))
    assert not left_out


def test_share_of_clients_worse_off_counts_those_that_lose_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "DRAWS", 2)
    tests, right = np.full((2, 10), 20), np.full((2, 10), 18.0)
    lost = right.copy()
    lost[0, :5] = 2  # a quarter of the clients of both draws
    answers = np.zeros((2, 10, 3), np.uint8)
    other = answers.copy()
    other[0, :5] = [255, 255, 0]
    made = [
        tables.Variant("iid", name, "served", {}, {"hits": h, "tests": tests, "answers": a})
        for name, h, a in (("x", lost, other), ("y", right, answers))
    ]
    assert tables._share_worse(*made) == 0.25
    assert tables._share_worse(*made[::-1]) == 0
    assert tables._share_lower(*made) == 0.25


def test_the_small_pages_say_what_ran_and_what_did_not(small: tuple[Path, Any]) -> None:
    text = "\n".join(page.render_page(small[1]))
    assert "over 3 of 38 declared worlds" in text
    ranking, _, _ = small[1].compute_ranking("served")
    ranks = dict(zip(ranking.methods, ranking.ranks, strict=True))
    assert f"| IFCA | **{ranks['ifca']:.1f}** | {100 * small[1].compute_regrets('served')['ifca'].mean():.1f} |" in text
    assert "| CLoVE | finds the clusters in a few rounds, with accuracy at the state of the art | rotation-4 | not run | not run |" in text
    text = "\n".join(measured.render_measured(small[1]))
    one = small[1].judged["iid", "tuned"]["ditto"]
    assert f"| iid | Ditto | - | {measured.format_span(one.gap)} {one.outcome} |" in text
    assert "| IFCA | served | 3 |" in text
    assert "| labels-mild |" in text
    page.draw(small[1], small[0])
    drawn = (small[0] / "rivals.svg").read_text(encoding="utf-8")
    assert all(f">{word}</text>" in drawn for word in ("IFCA", "Ditto", "alone", "iid", "rotation-4"))


def test_settings_that_lose_most_of_their_accuracy_are_named(small: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LARGE_LOSS", 10)
    row = small[1].costs.set_index(["world", "method", "stage"]).loc[("iid", "local", "tuned")]
    assert small[1].judged["iid", "tuned"]["local"].gap.mean < -0.1
    assert f"`local` at rate {row['rate']:g}, after 5 local epochs (iid" in page._list_failures(small[1])


def test_an_ordering_is_judged_by_its_interval_over_draws(small: tuple[Path, Any]) -> None:
    draws = [f"d{draw}" for draw in claims.DRAWS]
    rows = {"clove": [90, 91, 92, 90, 91], "fedavg": [80, 82, 81, 80, 81], "ifca": [91, 90, 92, 91, 90]}
    frame = pd.DataFrame([{"world": "rotated", "method": name} | dict(zip(draws, own, strict=True)) for name, own in rows.items()])
    text = "\n".join(page.render_page(dataclasses.replace(small[1], claims=frame)))
    gaps = np.subtract(rows["clove"], rows["fedavg"])
    low, high = stats.t.interval(0.95, 4, gaps.mean(), stats.sem(gaps))
    assert f"| FedAvg | MNIST, four angles | 90.8, 80.8 | +10.0 ({low:+.1f} to {high:+.1f}) | holds |" in text
    assert "| IFCA | MNIST, four angles | 90.8, 90.8 |" in text
    assert "Orderings by outcome: not run: 19, holds: 1, inconclusive: 1." in " ".join(text.split())
    assert page._judge_ordering(np.zeros(5)) == ("identical", "+0.0")
    assert all(own.world in claims.WORLDS and {own.method, *own.behind} <= set(claims.WORLDS[own.world].specs) for own in claims.ORDERINGS)
    assert {own.method for own in claims.ORDERINGS} >= set(page.CLAIMS)  # every method with a claim


def test_the_number_of_groups_by_rules(small: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one world and method; the gain is over the same draws of FedAvg."""
    monkeypatch.setattr(page, "NUMBER_DRAWS", range(500, 503))
    base = 100 * small[1].accuracies["iid", "fedavg", "served", ""]
    rows = [
        {"world": "iid", "method": "ifca", "rule": rule}
        | {f"d{500 + i}": base[i] + gain for i in range(3)}
        | {f"k{500 + i}": k for i, k in enumerate(own)}
        for rule, gain, own in (("own", -2.0, (3, 3, 2)), ("structure", 1.0, (1, 1, 1)))
    ]
    text = "\n".join(page.render_page(dataclasses.replace(small[1], number=pd.DataFrame(rows))))
    assert "| IFCA | its own rule | -2.0 (3: 67 %) | -2.0 |" in text
    assert "| IFCA | structure | +1.0 (1: 100 %) | +1.0 |" in text
    assert "IFCA +1.0 by structure, -2.0 by its own rule" in text


def test_rules_for_the_number_share_the_rate_and_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number, "TRUE_NUMBERS", {"rotation-2": 2})
    rows = {(row["method"], row["rule"]): row for row in number.run_world("rotation-2", range(500, 501), 2)}
    assert {rule for _, rule in rows} == set(number.RULES)
    assert ("ifca", "own") not in rows
    assert all(row["rate"] == number.read_rates()["rotation-2", method] for (method, _), row in rows.items())
    assert len({row["k500"] for (_, rule), row in rows.items() if rule == "structure"}) == 1
    assert rows["clove", "own"]["k500"] >= 2


def test_a_piece_that_is_there_is_not_run_again(small: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals.Piece, "_study", lambda *_: pytest.fail("it was run again"))
    rivals.Piece("iid", "ifca", small[0]).run()
    (small[0] / "pieces" / "iid" / "fedavg.npz").rename(small[0] / "kept.npz")
    with pytest.raises(pytest.fail.Exception, match="run again"):  # the settings chosen are kept
        rivals.Piece("iid", "fedavg", small[0]).run()
    (small[0] / "kept.npz").rename(small[0] / "pieces" / "iid" / "fedavg.npz")


def test_a_full_gpu_leaves_the_piece_for_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any) -> None:
        raise DeviceError("The GPU has too little memory.")

    monkeypatch.setattr(rivals.Piece, "_study", fill)
    assert rivals.run_piece(rivals.Piece("iid", "ifca", tmp_path), "run") == "The GPU has too little memory."
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_collect_keeps_the_rows_of_pieces_that_are_not_there(
    small: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "DRAWS", 3)
    monkeypatch.setattr(tables, "POINTS", [500, 501, 502])
    files, out = tmp_path / "tables", tmp_path / "out"
    shutil.copytree(small[0] / "tables", files)

    def read() -> dict[str, Any]:
        """The tables; of worlds their sizes, of what was not run each case."""
        texts: dict[str, Any] = {name: (files / f"{name}.csv").read_text() for name in ("scores", "gains", "costs")}
        sizes = pd.read_csv(files / "worlds.csv", dtype=str)[["world", "clients", "train", "test"]].to_csv()
        cases = {tuple(sorted(row.items())) for row in tables._split_worlds(tables._read(files / "not_run.csv")) if row.pop("worlds", "")}
        return texts | {"sizes": sizes, "cases": cases}

    before = read()
    tables.collect(out, files)  # no pieces
    assert read() == before
    for method in ("fedavg", "local", "ifca"):
        (out / "pieces" / "iid").mkdir(parents=True, exist_ok=True)
        shutil.copy(small[0] / "pieces" / "iid" / f"{method}.npz", out / "pieces" / "iid")
    path = files / "scores.csv"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("iid,ifca")))
    tables.collect(out, files)  # a piece brings its rows
    assert read() == before
    (out / "pieces" / "iid" / "local.npz").unlink()
    (out / "pieces" / "iid" / "ifca.npz").unlink()
    tables.collect(out, files)  # FedAvg alone: what it gains on clients alone is kept
    assert read() == before


def test_collect_refuses_another_fedavg_than_that_of_kept_rows(
    small: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "DRAWS", 3)
    monkeypatch.setattr(tables, "POINTS", [500, 501, 502])
    files = tmp_path / "tables"
    shutil.copytree(small[0] / "tables", files)
    frame = pd.read_csv(files / "scores.csv", dtype=str, keep_default_na=False)
    frame.loc[frame["method"] == "fedavg", "d501"] = "1.00000"
    frame.to_csv(files / "scores.csv", index=False)
    with pytest.raises(UserError, match="Run all methods of that world again"):
        tables.collect(small[0], files)


def test_reasons_of_other_runs_into_a_folder_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "not_run.json"
    rivals._keep_reasons(path, {("iid", "auto"): "a", ("iid", "ifca"): "b"}, {("iid", "ifca")})
    rivals._keep_reasons(path, {("heart", "ifca"): "c"}, {("iid", "ifca"), ("heart", "ifca")})
    assert {(row["world"], row["method"]): row["why"] for row in json.loads(path.read_text())} == {
        ("iid", "auto"): "a",
        ("heart", "ifca"): "c",
    }


def test_methods_that_this_version_lacks_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.METHODS, "none", rivals.Entry("rival", ("nosuchmethod",)))
    pieces, reasons = rivals.list_pieces(Path("x"), ["iid"], ["fedavg", "none"])
    assert [piece.method for piece in pieces] == ["fedavg"]
    assert "nosuchmethod" in reasons["iid", "none"]


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pydantic", "altair", "vl_convert", "pandas", "nvflare"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
sys.path.insert(0, "studies")
import dataclasses, tempfile
from pathlib import Path
import rivals, rivals_tables
rivals.DRAWS = rivals_tables.DRAWS = 1; rivals.TUNING = (590,); rivals.FIRST = 500; rivals_tables.POINTS = [500]
rivals.WORLDS["iid"] = dataclasses.replace(rivals.WORLDS["iid"], rounds=2)
out = Path(tempfile.mkdtemp())
rivals.Piece("iid", "fedavg", out).run()
rivals_tables.collect(out, out / "tables")
assert (out / "tables" / "scores.csv").exists()
"""


def test_a_world_runs_without_the_packages_of_pages() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pages_are_what_their_tables_give() -> None:
    stored = scores.Tables.read()
    assert "\n".join(page.render_page(stored)) + "\n" == page.PAGE.read_text(encoding="utf-8")
    assert "\n".join(measured.render_measured(stored)) + "\n" == page.MEASURED.read_text(encoding="utf-8")
