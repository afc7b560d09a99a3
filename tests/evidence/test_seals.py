"""What stands beside the studies of a comparison: changed, exchanged or lost, it is found by verify, by readers and on resume."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie._util.json_io import format_json, read_json
from coterie.analysis.comparison import open_comparison
from coterie.cli import main
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.manifest import SEALS, find_broken_seals, read_seals
from coterie.run.compare import compare
from coterie.run.execution import Execution
from integrity import edit_json, flip

DATA = ["digits/rotated(clients=8,groups=2)", "heart"]
FOLDERS = ["digits-rotated-clients-8-groups-2-validation-0.1", "heart-validation-0.1"]
ASKED: dict[str, Any] = {
    "data": DATA,
    "seeds": (0,),
    "plan": Plan(rounds=1, local=Local(lr=0.1)),
    "execution": Execution(engine="loop"),
    "rates": (0.01, 0.1),
    "tuning_seeds": 1,
    "controls": False,
}
METHODS = ["fedprox(mu=0.1)", "fedavg"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "c"
    compare(METHODS, out=out, **ASKED)
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "c"))


class Heard(ct.Callback):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def on_notice(self, sentence: str) -> None:
        self.sentences.append(sentence)


def resumed(folder: Path, **changes: Any) -> list[str]:
    heard = Heard()
    compare(METHODS, out=folder, resume=True, callbacks=[heard], **{**ASKED, **changes})
    return heard.sentences


def contents(folder: Path) -> dict[str, bytes]:
    own = [folder / "compare.json", folder / SEALS, *sorted((folder / "tuning").glob("*.json"))]
    return {path.name: path.read_bytes() for path in own}


def reverse_order(folder: Path) -> None:
    edit_json(folder / "compare.json", lambda tree: tree.update(folders=FOLDERS[::-1]))


def reverse_methods(folder: Path) -> None:
    edit_json(folder / "compare.json", lambda tree: tree.update(methods=METHODS[::-1]))


def other_rate(folder: Path) -> None:
    edit_json(folder / "tuning" / f"{FOLDERS[1]}.json", lambda tree: tree["fedavg"].update(chosen=0.5))  # type: ignore[attr-defined]


def exchanged(folder: Path) -> None:
    one, other = (folder / "tuning" / f"{name}.json" for name in FOLDERS)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


DAMAGES: list[tuple[Callable[[Path], object], list[str]]] = [
    (reverse_order, ["compare.json"]),
    (reverse_methods, ["compare.json"]),
    (lambda folder: (folder / "compare.json").unlink(), ["compare.json"]),
    (lambda folder: (folder / "compare.json").write_text("{"), ["compare.json"]),
    (other_rate, [f"tuning/{FOLDERS[1]}.json"]),
    (exchanged, [f"tuning/{name}.json" for name in FOLDERS]),
    (lambda folder: (folder / "tuning" / f"{FOLDERS[0]}.json").unlink(), [f"tuning/{FOLDERS[0]}.json"]),
    (lambda folder: (folder / SEALS).unlink(), [SEALS]),
    (lambda folder: edit_json(folder / SEALS, lambda tree: tree["files"].clear()), [SEALS]),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("damage", "names"), DAMAGES)
def test_what_is_changed_is_found_and_made_again(
    made: Path,
    folder: Path,
    damage: Callable[[Path], object],
    names: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_comparison(folder)
    assert not before.faults
    damage(folder)
    assert sorted(find_broken_seals(folder)) == sorted(names)
    monkeypatch.setattr(sys, "argv", ["coterie", "verify", str(folder)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = capfd.readouterr().out
    assert all(f"- {folder / name} is " in said for name in names)
    found = open_comparison(folder)
    assert [any(fault.startswith(f"{folder / name} ") for fault in found.faults) for name in names] == [True] * len(names)
    assert all(found.tuning[name] == before.tuning[name] for name in found.tuning)  # what is changed is not believed
    told = resumed(folder)
    assert [any(f"{folder / name} was damaged" in sentence for sentence in told) for name in names] == [True] * len(names)
    assert contents(folder) == contents(made)
    assert not open_comparison(folder).faults


def test_every_flipped_bit_is_found(made: Path, folder: Path) -> None:
    for name in contents(made):
        path = next(folder.rglob(name))
        for seed in range(8):
            whole = path.read_bytes()
            flip(path, seed)
            assert find_broken_seals(folder), (name, seed)
            path.write_bytes(whole)
    assert not find_broken_seals(folder)


def test_a_changed_request_is_not_taken_from_another_command(folder: Path) -> None:
    reverse_methods(folder)
    with pytest.raises(UserError, match=r"compare.json is not as it was written, and this command has other settings"):
        resumed(folder, seeds=(0, 1))
    assert read_json(folder / "compare.json")["methods"] == METHODS[::-1]  # nothing is overwritten


def test_a_federation_that_is_gone_or_another_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / FOLDERS[1], tmp_path / "away")
    found = open_comparison(folder)
    assert [findings.data for findings in found.federations] == ["digits/rotated(clients=8,groups=2,validation=0.1)"]
    assert found.faults == (f"{folder / FOLDERS[1]}/settings.json is missing.",)
    shutil.copytree(folder / FOLDERS[0], folder / FOLDERS[1])  # a whole study, and not the one that was there
    assert open_comparison(folder).faults == (f"{folder / FOLDERS[1]}/settings.json is not as it was written.",)


def test_a_federation_that_was_not_begun_is_named(folder: Path) -> None:
    shutil.rmtree(folder / FOLDERS[1])
    seals = read_seals(folder)
    assert seals is not None
    files = {name: sha256 for name, sha256 in seals.items() if not name.startswith(FOLDERS[1])}
    edit_json(folder / SEALS, lambda tree: tree.update(files=files, sha256=hash_text(format_json(files))))
    assert open_comparison(folder).faults == (f"{folder / FOLDERS[1]} is not there: it was not begun yet, or it was removed.",)
