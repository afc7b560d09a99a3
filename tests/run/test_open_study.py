"""Beginning a folder and going on with it: one process at a time, the data it began with, and no moment at which a kill leaves it stuck."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
import integrity
from coterie._util.errors import UserError
from coterie._util.files import FolderLock
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.content import hash_array, hash_contents
from coterie.evidence import Evidence, digest
from coterie.evidence.folder import create_folder
from coterie.evidence.settings import Settings
from coterie.evidence.verify import verify
from coterie.run.compare import compare
from coterie.run.environment import describe_environment, find_changes
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing import worlds

PLAN = Plan(rounds=2, local=Local(epochs=1, lr=0.1, max_steps=2))
LOOP = Execution(engine="loop", checkpoint_every=1)


def settings(data: str) -> Settings:
    return Settings(methods=("fedavg",), data=data, plan=PLAN)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CSV file of six clients, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "sites.csv"
    path.write_text(integrity.csv_of("abcdef"))
    return path


def run(path: Path, out: Path, *, resume: bool) -> str:
    study = Study.prepare(settings(f"csv('{path}',label='label',client='client')"))
    return digest(study.run(out=out, resume=resume, execution=LOOP).evidence)


def other_labels(text: str) -> str:
    head, *rows = text.splitlines()
    cells = [row.split(",") for row in rows]
    made = [f"{a},{b},{1 - int(label) if i % 7 == 0 else label},{client}" for i, (a, b, label, client) in enumerate(cells)]
    return "\n".join([head, *made]) + "\n"


def one_client_fewer(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.endswith(",f\n"))


def another_feature(text: str) -> str:
    head, first, *rows = text.splitlines(keepends=True)
    return "".join([head, ("9" if first[0] != "9" else "8") + first[1:], *rows])


@pytest.mark.parametrize(
    ("change", "what"), [(other_labels, "labels"), (one_client_fewer, "clients"), (another_feature, "features")], ids=lambda x: str(x)[:24]
)
def test_changed_data_are_refused(change: object, what: str, table: Path, tmp_path: Path) -> None:
    before = run(table, tmp_path / "study", resume=False)
    assert run(table, tmp_path / "study", resume=True) == before
    assert callable(change)
    text = change(table.read_text())
    if len(text) == len(table.read_text()):
        integrity.with_same_times(table, text)
    else:
        table.write_text(text)
    with pytest.raises(UserError, match=rf"are not those it was started with \(.*{what}.* differ\)"):
        run(table, tmp_path / "study", resume=True)
    assert verify(tmp_path / "study").whole


def test_data_that_say_the_same_elsewhere_are_the_same(table: Path, tmp_path: Path) -> None:
    federation = ct.load(f"csv('{table}',label='label',client='client')")
    moved = table.with_name("moved.csv")
    shutil.copyfile(table, moved)
    assert hash_contents(ct.load(f"csv('{moved}',label='label',client='client')")) == hash_contents(federation)


@pytest.mark.parametrize("name", ["x", "y", "owners", "about"])
def test_a_damaged_cache_heals_itself(name: str, table: Path, tmp_path: Path) -> None:
    spec = f"csv('{table}',label='label',client='client')"
    before = hash_contents(ct.load(spec))
    (entry,) = (tmp_path / "cache" / "coterie" / "decoded").iterdir()
    path = entry / ("about.json" if name == "about" else f"{name}.npy")
    for damage in (lambda: integrity.flip(path, 1), lambda: path.write_bytes(path.read_bytes()[:-3]), path.unlink):
        damage()
        assert hash_contents(ct.load(spec)) == before


def test_every_part_of_a_federation_counts() -> None:
    federation = worlds.make_federation()
    usual = hash_contents(federation)
    assert usual == hash_contents(worlds.make_federation())
    x = federation.x.copy()
    x[-1, -1] += 1
    changed = {
        "features": federation.replace(x=x),
        "labels": federation.replace(y=np.roll(federation.y, 1)),
        "clients": federation.replace(ids=federation.ids[::-1]),
        "parts": federation.replace(train=federation.test, test=federation.train),
        "arrivals": federation.replace(arrivals=np.zeros(len(federation), np.int64)),
    }
    for name, other in changed.items():
        found = hash_contents(other)
        assert [part for part in sorted({*usual, *found}) if usual.get(part) != found.get(part)] == [name]


def test_the_hash_of_an_array_is_that_of_its_blocks_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(6000, dtype=np.float32).reshape(1000, 6)
    assert hash_array(array) == hash_array(np.asfortranarray(array)) != hash_array(array.reshape(6000))
    monkeypatch.setattr("coterie.data.content.HASH_BLOCK", 240)  # ten rows
    monkeypatch.setattr("coterie.data.content.MAX_HASHED", 12000)  # half of the blocks are read
    usual = hash_array(array)
    seen = sum(hash_array(np.where(np.arange(1000)[:, None] // 10 == block, -1, array).astype(np.float32)) != usual for block in range(100))
    assert seen == 50


HOLDER = """
import sys, time
from pathlib import Path
from coterie._util.files import FolderLock
hold = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_two_processes_do_not_write_to_one_folder_and_a_dead_one_holds_nothing(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    before = run(table, out, resume=False)
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"is being written to by process {other.pid}: wait until it ends"):
            run(table, out, resume=True)
    finally:
        other.kill()
        other.communicate()
    assert run(table, out, resume=True) == before  # no trace of the dead one stands in the way
    with FolderLock(out), pytest.raises(UserError, match=f"by process {os.getpid()}"):
        run(table, out, resume=True)


def test_a_comparison_is_held_too(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    out.mkdir()
    with FolderLock(out), pytest.raises(UserError, match="is being written to"):
        compare(["fedavg"], data="synthetic(0,0,clients=5)", out=out, rounds=1, seeds=[0])


def test_a_full_disk_at_creation_leaves_a_folder_that_can_be_begun_again(tmp_path: Path) -> None:
    out = tmp_path / "study"

    def full(draft: Path) -> None:
        (draft / "execution.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"Cannot write to .*study: No space left on device\."):
        create_folder(out, "settings.json", full)
    create_folder(out, "settings.json", lambda draft: (draft / "settings.json").touch()).close()
    assert sorted(path.name for path in out.iterdir()) == [".lock", "settings.json"]
    with pytest.raises(UserError, match="is not empty"):
        create_folder(out, "settings.json", full)


def test_what_is_not_ones_own_is_not_begun_in(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not empty: choose another out="):
        Study.prepare(settings("tiny"), federation=worlds.make_federation()).run(out=tmp_path)
    with pytest.raises(UserError, match="holds no study to resume"):
        Study.prepare(settings("tiny"), federation=worlds.make_federation()).run(out=tmp_path, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        Study.prepare(settings("tiny"), federation=worlds.make_federation()).run(out=tmp_path / "file")


def test_every_kill_at_creation_leaves_what_the_same_command_begins() -> None:
    """In a process that forks one child for each operation at which it is killed, with SIGKILL; see the script."""
    script = Path(__file__).with_name("killed_at_creation.py")
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["kills"] >= 25
    assert told["stuck"] == []


def test_a_resume_under_other_versions_is_said_aloud(tmp_path: Path) -> None:
    now = describe_environment()
    assert find_changes(now, now) == []
    assert now["vectors"]
    before = {**now, "vectors": "AVX2", "packages": {**now["packages"], "numpy": "1.0", "torch": None}, "blas": {}}
    assert find_changes(before, now) == [f"vector units {now['vectors']} (was AVX2)", f"numpy {now['packages']['numpy']} (was 1.0)"]
    out = tmp_path / "study"
    study = Study.prepare(settings("tiny"), federation=worlds.make_federation())
    study.run(out=out, execution=LOOP)
    (out / "environment.json").write_text(json.dumps({**before, "loss": "cross_entropy"}))
    integrity.reseal(out)
    heard: list[str] = []

    class Watch(ct.Callback):
        def on_notice(self, sentence: str) -> None:
            heard.append(sentence)

    study.run(out=out, resume=True, callbacks=[Watch()])
    assert len(heard) == 1
    assert heard[0].startswith("The study continues under vector units")
    assert heard[0] in (out / "log.txt").read_text()
    assert Evidence.open(out)


def test_two_libraries_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's and SciPy's OpenBLAS have one prefix; which of them is loaded first says nothing about the machine."""
    both = [
        {
            "user_api": "blas",
            "prefix": "libscipy_openblas",
            "internal_api": "openblas",
            "version": version,
            "filepath": f"/site/{owner}.libs/lib.so",
        }
        for owner, version in (("numpy", "0.3.31"), ("scipy", "0.3.30"))
    ]
    found: dict[int, Any] = {}
    for loaded in (both[:1], both, both[::-1]):
        monkeypatch.setattr("coterie.run.environment.threadpool_info", lambda loaded=loaded: loaded)
        found[len(found)] = describe_environment()
    assert (
        found[1]["blas"] == found[2]["blas"] == {"numpy.libs": "openblas 0.3.31 (one kernel)", "scipy.libs": "openblas 0.3.30 (one kernel)"}
    )
    assert find_changes(found[0], found[1]) == find_changes(found[1], found[0]) == []
