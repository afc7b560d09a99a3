"""How commands end that cannot go on, as processes: one sentence, the right exit code, never a traceback."""

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cli.processes import MAIN, coterie_process, environment
from cli.test_bundle_commands import Commands
from coterie._util.errors import UserError
from coterie._util.json_io import read_json, read_json_strings
from coterie.cli import MIN_ADDRESS_SPACE, describe_exit, is_out_of_memory
from coterie.data import table
from coterie.evidence.settings import MAX_SEEDS, Settings, parse_seeds
from coterie.evidence.writer import WriteError
from coterie.run.execution import Execution

DATA = ["--data", "digits/iid(clients=4)"]


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capfd, monkeypatch)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["run", "fedavg", *DATA, "--out", "study"],
            "coterie: Stopped. What was written is safe; resume with coterie run fedavg --data 'digits/iid(clients=4)' --out study "
            "--rounds 100000 --engine loop --resume\n",
        ),
        (["inspect", "--data", "digits/iid(clients=20)", "--references", "100000"], "coterie: Stopped.\n"),
    ],
    ids=["run", "inspect"],
)
def test_ctrl_c_is_told(words: list[str], sentence: str, tmp_path: Path) -> None:
    """Typer turns an interrupt into an exit, so that the sentence was never printed."""
    more = ["--rounds", "100000", "--engine", "loop"] if words[0] == "run" else []
    process = subprocess.Popen(
        [*MAIN, *words, *more],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # a shell's background jobs begin by ignoring it
    )
    began = time.monotonic()
    while process.poll() is None and not _busy(process.pid, tmp_path, words[0]) and time.monotonic() - began < 60:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said == sentence
    assert process.returncode == 130


def _busy(pid: int, folder: Path, command: str) -> bool:
    """Whether the command is past its imports: it has written its first rounds, or used some seconds of its own."""
    if command == "run":
        return any((folder / "study" / "segments").glob("0*"))
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK") > 4


def test_a_terminal_that_lacks_signs_ends_no_command(tmp_path: Path) -> None:
    found = coterie_process("run", "fedavg", *DATA, "--rounds", "1", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert found.returncode == 0, found.stderr.decode()
    assert b"final" in found.stdout
    found = coterie_process("show", "ö–∞", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert found.returncode == 2
    assert found.stderr.decode("latin-1") == "coterie: ö-? holds no study: name the folder that --out made.\n"


@pytest.mark.parametrize("limit", [400 << 20, MIN_ADDRESS_SPACE - 1])
def test_too_little_address_space_is_one_sentence(limit: int, tmp_path: Path) -> None:
    found = subprocess.run(
        [*MAIN, "run", "fedavg"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit)),
    )
    assert found.returncode == 2
    assert "of address space are allowed (ulimit -v)" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_which_errors_are_sentences() -> None:
    told = describe_exit(UserError("Wrong."))
    assert told == ("Wrong.", 2)
    assert describe_exit(WriteError("Full.")) == ("Full.", 1)
    assert describe_exit(ZeroDivisionError()) is None  # a bug keeps its traceback
    assert describe_exit(RuntimeError("a bug")) is None
    wrong = describe_exit(PermissionError(13, "Permission denied", "/some/x"))
    assert wrong == ("/some/x: Permission denied: check the path, its permissions and the free space on the disk.", 2)
    for error in (
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        OSError(12, "Cannot allocate memory"),
        ImportError("lib.so.0: failed to map segment from shared object"),
    ):
        assert is_out_of_memory(error)
        found = describe_exit(error)
        assert found is not None
        assert found.code == 2
        assert found.sentence.startswith("There is not enough memory for this")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "x" * 300], "File name too long"),
        (["run", "fedavg", *DATA, "--rounds", "1", "--out", "x" * 300], "File name too long"),
        (["run", "fedavg", *DATA, "--rounds", "1", "--out", "file/below"], "Not a directory"),
        (["run", "file"], "Unknown method 'file'"),
        (["run", "folder.toml"], "Is a directory"),
        (["run", "deep.toml"], "deep.toml"),
        (["report", "file"], "holds no study"),
        (["predict", "folder", "--data", "file"], "holds no bundle"),
        (["run", "fedavg", *DATA, "--seeds", "0-²"], "Cannot read the seeds"),
        (["run", "fedavg", *DATA, "--seeds", "٣"], "Cannot read the seeds"),
        (["run", "fedavg", *DATA, "--seeds", "0-999999999"], "are more than 100,000"),
        (["run", "fedavg", *DATA, "--seeds", "9" * 5000], "seeds lie below 2^63"),
        (["run", "fedavg", *DATA, "--seeds", "9223372036854775808"], "seeds lie below 2^63"),
        (["run", "fedavg", *DATA, "--data-seed", "9" * 30], "seeds lie below 2^63"),
        (["run", "fedavg", *DATA, "--model", "mlp(1000000000)"], "would take 279 GiB"),
        (["run", "fedavg", *DATA, "--model", "mlp(9223372036854775807,9223372036854775807)"], "choose a smaller one"),
        (["run", "fedavg", *DATA, "--model", f"mlp({'9' * 40})"], "cannot be made"),
        (["run", "fedavg", *DATA, "--model", f"mlp({'(' * 500}1{')' * 500})"], "Cannot read the settings"),
        (["run", "fedavg", "--data", "digits/iid(clients=4,test=0)", "--rounds", "1"], "has test samples, so nothing could be scored"),
    ],
)
def test_odd_input_is_one_sentence(words: list[str], sentence: str, coterie: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    assert sentence in coterie.refused(*words)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("settings", "[]", "are a value of type list, not an object"),
        ("settings", '{"format": 1, "methods": "fedavg", "data": "d", "seeds": [0], "draws": [0], "plan": {"local": {}}}', "list of words"),
        ("settings", '{"format": 1, "methods": ["a"], "data": "d", "seeds": ["0"], "draws": [0], "plan": {"local": {}}}', "whole numbers"),
        ("settings", '{"format": 1, "methods": ["a"], "data": 3, "seeds": [0], "draws": [0], "plan": {"local": {}}}', "should be words"),
        ("settings", '{"format": 1, "methods": ["a"], "data": "d", "seeds": [0], "draws": [0], "plan": {"rounds": "2"}}', "cannot be read"),
        ("settings", "[" * 50000, "cannot be read"),
        ("execution", "[]", "should hold a JSON object"),
        ("execution", '{"engine": 3}', "engine=3"),
        ("execution", '{"motor": "x"}', "has an unknown setting 'motor'"),
        ("routes", '{"train": 3}', "should hold a word for 'train'"),
        ("routes", '"x"', "should hold a JSON object"),
    ],
)
def test_wrong_types_in_a_study_s_files_are_one_sentence(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    read: dict[str, Callable[[Path], object]] = {
        "settings": lambda path: Settings.from_json(read_json(path)),
        "execution": Execution.read,
        "routes": read_json_strings,
    }
    path = tmp_path / f"{name}.json"
    path.write_text(content)
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        read[name](path)
    assert "delete" not in str(caught.value).lower()  # the folder is the whole study


def test_a_study_whose_files_hold_something_else_is_refused_or_mended(coterie: Commands, tmp_path: Path) -> None:
    words = ["run", "fedavg", *DATA, "--rounds", "1", "--out", "study"]
    coterie(*words)
    for name in ("settings", "execution", "routes", "environment"):
        (tmp_path / "study" / f"{name}.json").write_text("[]")
    for command in ("show", "report", "digest"):
        assert "delete" not in coterie.refused(command, "study").lower()
    coterie(*words, "--resume")
    coterie("show", "study")


def test_nobody_and_what_is_not_finite_are_said_aloud(coterie: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = coterie("run", "fedavg", *DATA, "--rounds", "3", "--dropout", "0.97")
    assert "fedavg: no client replied in 3 of 3 rounds (over all seeds); its models did not change." in " ".join(said.split())
    folder = tmp_path / "own"
    folder.mkdir()
    x = np.ones((80, 5), np.float32)
    x[43, 2] = np.nan
    for array, values in (("x", x), ("y", np.arange(80) % 2), ("client", np.arange(80) // 20)):
        np.save(folder / f"{array}.npy", values)
    said = coterie.refused("run", "fedavg", "--data", "npz(own)/natural", "--rounds", "1")
    assert "own: sample 43 holds a value that is no finite number; fill it in or drop it." in said
    with monkeypatch.context() as patch:  # of a set larger than a GiB only some rows are looked at
        patch.setattr(table, "MAX_CHECKED_BYTES", 0)
        patch.setattr(table, "SAMPLED_ROWS", 2)
        said = " ".join(coterie("run", "fedavg", "--data", "npz(own)/natural(test=0.1)", "--rounds", "2").split())
    assert "1 client (2) sent numbers that are not finite, 2 times in all: that did not count; are all values of its data finite" in said
    np.save(folder / "y.npy", np.where(np.arange(80) % 2, 5_000_000, 0))
    assert "labels up to 5000000 would make 5,000,001 classes" in coterie.refused("data", "npz(own)/natural")


def test_seeds() -> None:
    assert parse_seeds("0,2,5-7") == (0, 2, 5, 6, 7)
    assert len(parse_seeds(f"1-{MAX_SEEDS}")) == MAX_SEEDS
    assert len(Settings(methods=("fedavg",), data="digits", seeds=tuple(range(MAX_SEEDS))).seeds) == MAX_SEEDS  # in no time
    with pytest.raises(UserError, match="names the seed 3 twice"):
        Settings(methods=("fedavg",), data="digits", seeds=(3, 1, 3))
