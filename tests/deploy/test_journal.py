"""A run's journal outlives what happens to its writer."""

from pathlib import Path

from coterie._util.json_io import read_json
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
