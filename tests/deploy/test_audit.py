"""The log: lines that are only added, and what its chain shows."""

import json
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.deploy.audit import FIRST, Audit, verify_audit


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    for i in range(5):
        Audit(path).append({"ask": "Train", "round": i, "norms": {"a": 0.1 * i}, "loss": float("nan")})  # each from a process of its own
    return path


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_log_that_nobody_touched_is_whole(log: Path) -> None:
    found = verify_audit(log)
    assert (found.lines, found.faults) == (5, ())
    assert json.loads(lines(log)[0])["previous"] == FIRST
    assert json.loads(lines(log)[-1])["hash"] == found.last
    assert log.stat().st_mode & 0o777 == 0o600
    assert verify_audit(log, last=found.last).faults == ()


def test_a_changed_line_is_named(log: Path) -> None:
    for place in (0, 2, 4):  # the last one, too
        whole = lines(log)
        changed = whole.copy()
        changed[place] = changed[place].replace(b'"Train"', b'"Error"')
        log.write_bytes(b"".join(changed))
        assert verify_audit(log).faults == (f"Line {place + 1} (number {place + 1}) was changed.",)
        log.write_bytes(b"".join(whole))


def test_a_line_written_anew_with_its_hash_is_found_by_the_next(log: Path, tmp_path: Path) -> None:
    whole = lines(log)
    other = tmp_path / "other.jsonl"
    for i in range(3):
        Audit(other).append({"ask": "Error", "round": i})
    log.write_bytes(b"".join([*whole[:2], lines(other)[2], *whole[3:]]))
    assert "Line 2 was replaced" in verify_audit(log).faults[0]
    assert "Line 3 was replaced" in verify_audit(log).faults[1]


def test_missing_lines_are_numbered(log: Path) -> None:
    whole = lines(log)
    log.write_bytes(b"".join([whole[0], *whole[2:]]))
    assert verify_audit(log).faults == ("Number 2 is missing before line 2.",)
    log.write_bytes(b"".join([whole[0], whole[4]]))
    assert verify_audit(log).faults == ("Numbers 2 to 4 are missing before line 2.",)
    log.write_bytes(b"".join([whole[0], whole[2], whole[1], *whole[3:]]))
    assert any("moved or put in" in fault for fault in verify_audit(log).faults)


def test_an_end_that_was_cut_off_is_seen_with_a_hash_from_elsewhere(log: Path) -> None:
    noted = verify_audit(log).last
    log.write_bytes(b"".join(lines(log)[:4]))
    assert verify_audit(log).faults == ()
    assert "cut off" in verify_audit(log, last=noted).faults[0]


def test_after_a_crash_within_a_line_the_chain_goes_on(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-20])
    Audit(log).append({"ask": "Train"})
    assert verify_audit(log).faults == ("Line 5 cannot be read: it was cut short or changed.",)
    assert verify_audit(log).lines == 5


def test_lines_longer_than_a_look_back(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        Audit(path).append({"clients": ["x" * 100] * 2000})
    assert (verify_audit(path).lines, verify_audit(path).faults) == (3, ())


def test_no_log_is_no_empty_log(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no audit log"):
        verify_audit(tmp_path / "audit.jsonl")
