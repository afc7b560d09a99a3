"""A run's journal outlives what happens to its writer."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coterie._util.json_io import read_json, write_json
from coterie.deploy.server.runs import JOURNAL_FILE, STATUS_FILE, Journal, read_journal


def test_half_a_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    assert journal.lines() == []
    journal.begin(["a"])
    with (tmp_path / "run" / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"time": 1, "wh')  # the disk was full, or the server was killed
    journal.end("again")
    assert [line["what"] for line in read_journal(tmp_path / "run")] == ["began", "ended"]
    assert [line["what"] for line in journal.lines(1)] == ["ended"]
    assert read_json(tmp_path / "run" / STATUS_FILE) == {"status": "again"}


def test_two_threads_write_the_status_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is between its draft and the rename when the other writes the same file from its beginning to its end."""
    path, sync = tmp_path / STATUS_FILE, os.fsync

    def interrupted(handle: int) -> None:
        sync(handle)
        monkeypatch.setattr(os, "fsync", sync)
        other = threading.Thread(target=write_json, args=(path, {"status": "complete"}))
        other.start()
        other.join()

    monkeypatch.setattr(os, "fsync", interrupted)
    write_json(path, {"status": "running"})
    assert read_json(path) == {"status": "running"}  # the last rename counts
    assert [found.name for found in tmp_path.iterdir()] == [STATUS_FILE]


def test_two_processes_write_the_status_at_once(tmp_path: Path) -> None:
    loop = "import sys; from pathlib import Path; from coterie._util.json_io import write_json\n"
    loop += "for i in range(300): write_json(Path(sys.argv[1]), {'status': i})"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [subprocess.Popen([sys.executable, "-c", loop, str(tmp_path / STATUS_FILE)], env=paths) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert read_json(tmp_path / STATUS_FILE) == {"status": 299}
    assert [found.name for found in tmp_path.iterdir()] == [STATUS_FILE]


def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left, new, other = (tmp_path / f".draft-{name}" for name in (f"1-2-{STATUS_FILE}", f"3-4-{STATUS_FILE}", "1-2-order.json"))
    for draft in (left, new, other):
        draft.write_text("{")
    for draft in (left, other):
        os.utime(draft, (0, 0))
    write_json(tmp_path / STATUS_FILE, {"status": "running"})
    assert not left.exists()
    assert new.exists()  # it may be of a process that is about to rename it
    assert other.exists()
