"""Ways to damage a study, each seeded: flipped bits, lost and swapped segments, kills, changed data.

Everything works on folders and processes as a user has them; only `reseal` uses the code under test.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coterie._util.files import hash_file
from coterie.evidence.manifest import Link, Manifest, StudyHead, compute_origin, read_manifest

# Runs a command, and kills its own process (SIGKILL) at the n-th time that it opens, makes, renames or removes something below a folder.
KILLED = """
import os, signal, sys
folder, number = os.path.abspath(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:3]
seen = 0
def count(event, words):
    global seen
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree") and words:
        if isinstance(words[0], (str, bytes, os.PathLike)) and os.path.abspath(os.fsdecode(words[0])).startswith(folder):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
from coterie.cli import main
main()
"""


def coterie(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, to its end."""
    command = [sys.executable, "-c", "from coterie.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def killed_at(number: int, folder: Path, *words: str) -> bool:
    """Run a command that is killed at its n-th operation below a folder; whether it came so far."""
    command = [sys.executable, "-c", KILLED, str(folder), str(number), *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=300).returncode == -signal.SIGKILL


def files_of(folder: Path) -> list[Path]:
    """Every file of a study but its log and its lock, which nothing rests on."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.txt", ".lock"))


def flip(path: Path, seed: int) -> int:
    """Turn one bit of a file over; where."""
    data = bytearray(path.read_bytes())
    place = random.Random(f"{path.name} {seed}").randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return place


def numbered(folder: Path) -> list[Path]:
    """The segments of a study, in order."""
    return sorted(path for path in (folder / "segments").iterdir() if path.name.isdecimal())


def remove_segment(folder: Path, place: int) -> None:
    """Take a segment away, by its place."""
    shutil.rmtree(numbered(folder)[place])


def swap_segments(folder: Path, one: int, other: int) -> None:
    """Let two segments change names."""
    first, second = numbered(folder)[one], numbered(folder)[other]
    between = first.with_name(".between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


def overwrite_table(folder: Path, table: str, source: int, target: int) -> None:
    """Put a table of one segment in place of another's."""
    there = numbered(folder)
    shutil.copyfile(there[source] / f"{table}.parquet", there[target] / f"{table}.parquet")


def rewrite_table(folder: Path, table: str, place: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a table anew with something done to it."""
    path = numbered(folder)[place] / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def double_hits(table: pa.Table) -> pa.Table:
    """Twice as many right answers."""
    for place, name in enumerate(table.column_names):
        if name.startswith("hits_"):
            table = table.set_column(place, name, pa.array(2 * table[name].to_numpy()))
    return table


def edit_json(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change what a JSON file says."""
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def reverse_methods(folder: Path) -> None:
    """Let the settings name the methods the other way round."""
    edit_json(folder / "settings.json", lambda tree: tree.update(methods=list(reversed(tree["methods"]))))  # type: ignore[call-overload]


def reseal(folder: Path) -> Path:
    """Let the head and the manifests of a study have the hashes of its files as they are now, so that only their contents are wrong."""
    head = StudyHead.from_folder(folder)
    for path in numbered(folder) if (folder / "segments").is_dir() else ():
        manifest = read_manifest(path)
        assert isinstance(manifest, Manifest)
        files = {name: hash_file(path / name) for name in manifest.files if (path / name).exists()}
        replace(manifest, previous=head.last, files=files, study=compute_origin(head.files).sha256).write(path)
        head = replace(head, last=Link(path.name, hash_file(path / "manifest.json")))
    head.write(folder)
    return folder


def with_same_times(path: Path, text: str) -> None:
    """Put other text of the same length into a file, which keeps its size and time."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def csv_of(clients: Sequence[str], seed: int = 0, samples: int = 30) -> str:
    """A small table of two features, two classes and these clients."""
    chance = random.Random(seed)
    rows = [
        f"{chance.uniform(-1, 1) + label:.4f},{chance.uniform(-1, 1):.4f},{label},{client}"
        for client in clients
        for label in (0, 1)
        for _ in range(samples // 2)
    ]
    return "\n".join(["a,b,label,client", *rows]) + "\n"
