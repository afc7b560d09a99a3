"""The log: lines that are only added, and what its chain shows."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.deploy.messages import PROTOCOL, AskBatch, Denial, MessageError, ReplyBatch, from_message, to_message
from coterie.deploy.orders import OrderTerms
from coterie.deploy.site.audit import FIRST_HASH, FLARE_LOG, HEAD_FILE, Audit, verify_audit, verify_kit_log
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from coterie.engines.engine import StampedAsk
from deploy.ordering import APPROVE_ANY, make_hello, make_terms


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
    assert json.loads(lines(log)[0])["previous"] == FIRST_HASH
    assert json.loads(lines(log)[-1])["hash"] == found.last
    assert log.stat().st_mode & 0o777 == 0o600
    assert verify_audit(log, last=found.last).faults == ()


def test_a_changed_line_is_named(log: Path) -> None:
    for place in (0, 2, 4):  # the last one, too
        whole = lines(log)
        changed = whole.copy()
        changed[place] = changed[place].replace(b'"Train"', b'"Other"')
        log.write_bytes(b"".join(changed))
        assert verify_audit(log).faults == (f"Line {place + 1} (number {place + 1}) was changed.",)
        log.write_bytes(b"".join(whole))


def test_a_line_written_anew_with_its_hash_is_found_by_the_next(log: Path, tmp_path: Path) -> None:
    whole = lines(log)
    other = tmp_path / "other.jsonl"
    for i in range(3):
        Audit(other).append({"ask": "AskErrors", "round": i})
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


# A kit's log: the head of the last check, a full disk, long fields, FLARE's own log.


def test_a_kit_remembers_the_last_line_that_was_checked(log: Path) -> None:
    assert verify_kit_log(log).faults == ()
    head = log.with_name(HEAD_FILE)
    assert head.stat().st_mode & 0o777 == 0o600
    Audit(log).append({"ask": "Train"})
    assert verify_kit_log(log).faults == ()  # a log that has grown
    whole = lines(log)
    for left in (5, 1, 0):
        log.write_bytes(b"".join(whole[:left]))
        (fault,) = verify_kit_log(log).faults
        assert fault == "Line 6 was the last one when the log was last checked, and is gone: the end was cut off, or the log rewritten."
    Audit(log).append({"ask": "Train"})  # and stays noticed when it grows again
    assert "is gone" in verify_kit_log(log).faults[0]
    log.unlink()
    with pytest.raises(UserError, match="it had 6 lines when it was last checked: it was removed"):
        verify_kit_log(log)
    head.write_text("{")
    with pytest.raises(UserError, match="head of the audit log"):
        verify_kit_log(log)


def test_the_last_entries_come_with_a_check(log: Path) -> None:
    assert [entry["line"] for entry in verify_audit(log, entries=2).entries] == [4, 5]
    assert verify_audit(log).entries == ()


def test_a_long_field_does_not_fill_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(path, "0" * 64).append({"purpose": "x" * 50_000_000, "clients": ["y" * 50_000_000] * 2, "norms": {"z" * 50_000_000: 1.0}})
    Audit(path).append({"clients": ["c"] * 1_000_000})
    assert path.stat().st_size < 200_000
    assert verify_audit(path).faults == ()
    assert "(50,000,000 characters)" in verify_audit(path, entries=2).entries[0]["purpose"]


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_leaves_no_torn_line(log: Path, room: int) -> None:
    before, limit = log.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limit[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT011  which one depends on how much room is left
            Audit(log).append({"ask": "Train", "more": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert log.read_bytes() == before
    Audit(log).append({"ask": "Train"})
    assert (verify_audit(log).lines, verify_audit(log).faults) == (6, ())


def test_the_log_of_flare_is_in_the_chain(log: Path) -> None:
    flare, audit = log.with_name(FLARE_LOG), Audit(log)
    audit.chain_flare_log()  # there is none yet
    flare.write_text("[E:1][A:train.deploy]\n[E:2][A:train.start_job]\n")
    audit.chain_flare_log()
    audit.chain_flare_log()  # nothing new
    with flare.open("a") as file:
        file.write("[E:3]\n[E:4][A:half a li")
    Audit(log).chain_flare_log()
    pieces = [entry for entry in verify_audit(log, entries=9).entries if entry.get("event") == "flare log"]
    assert [(piece["begin"], piece["end"]) for piece in pieces] == [(0, 47), (47, 53)]
    whole = flare.read_bytes()
    assert verify_audit(log).faults == ()
    flare.write_bytes(whole.replace(b"start_job", b"stop_jobs"))
    assert verify_audit(log).faults == ("FLARE's log audit.log was changed between bytes 0 and 47, of which line 6 has the hash.",)
    flare.write_bytes(whole[:50])
    assert "FLARE's log audit.log was cut off" in verify_audit(log).faults[0]
    flare.unlink()
    assert "was cut off" in verify_audit(log).faults[0]


# What a site logs beside asks.


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(APPROVE_ANY)
    SiteSettings(data="heart", clients=("va",), engine="loop", threads=1).write(tmp_path)
    return tmp_path


def parcel_of(terms: OrderTerms, ids: tuple[str, ...] = ("va",), clients: Any = (0,), **changes: Any) -> bytes:
    ask = Train(np.array(clients), np.zeros((1, 28), dtype=np.float32), Local(), start=np.zeros(len(clients), dtype=np.int64), **changes)
    return to_message(AskBatch(PROTOCOL, terms.run, "2", ids, (StampedAsk(ask, 0, 1),), terms.hash))


def test_hellos_cards_and_what_is_refused_are_in_the_log(kit: Path) -> None:
    site, terms = Site(kit), make_terms("first")
    site.answer(to_message(make_hello(terms)))
    (approval, sealed, hello) = verify_audit(kit / "audit.jsonl", entries=3).entries
    assert sealed["event"] == "ledger sealed"
    assert (approval["event"], approval["state"], approval["by"]) == ("approval", "approved", "policy")
    assert (hello["event"], hello["run"], hello["clients"]) == ("hello", "first", ["va"])
    assert hello["sizes"] == [104]
    for message, reason in (
        (parcel_of(terms, ("hungary",)), "no client 'hungary' here"),
        (parcel_of(terms, ("\x1b[2J" + "x" * 4000,)), "no client '\\\\x1b[2Jxxx"),
        (parcel_of(terms, clients=(1,)), "about a client that the batch does not name"),
        (parcel_of(terms, clients=(-1,)), "about a client that the batch does not name"),
        (parcel_of(terms, ("va", "va"), (0, 1)), "names a client twice"),
        (to_message(AskBatch(PROTOCOL, "first", "2", ("va",), (3,), terms.hash)), "something that is no ask"),  # type: ignore[arg-type]
    ):
        response = from_message(site.answer(message), ReplyBatch)
        assert all(isinstance(answer, Denial) for answer in response.answers)
        (entry,) = verify_audit(kit / "audit.jsonl", entries=1).entries
        assert entry["event"] == "refused"
        assert reason in entry["reason"]
        assert entry["order"] == terms.hash
    for garbage in (b"", b"nonsense", to_message(Denial("x")), parcel_of(terms)[:-3], parcel_of(terms, purpose="x" * 5_000)):
        before = verify_audit(kit / "audit.jsonl").lines
        with pytest.raises(MessageError):
            site.answer(garbage)
        assert verify_audit(kit / "audit.jsonl").lines == before + 1
    assert (kit / "audit.jsonl").stat().st_size < 20_000
    assert not isinstance(from_message(site.answer(parcel_of(terms)), ReplyBatch).answers[0], Denial)


def test_a_purpose_of_50_megabytes_reaches_no_log(kit: Path) -> None:
    site, terms = Site(kit), make_terms("first")
    site.answer(to_message(make_hello(terms)))
    with pytest.raises(MessageError, match="AskBatch with a text of over 4,096 characters"):
        site.answer(parcel_of(terms, purpose="x" * 50_000_000))
    assert (kit / "audit.jsonl").stat().st_size < 5_000


def test_without_a_log_nothing_is_answered(kit: Path) -> None:
    site, terms = Site(kit), make_terms("first")
    site.answer(to_message(make_hello(terms)))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((kit / "audit.jsonl").stat().st_size, limit[1]))
    try:
        with pytest.raises(MessageError, match="could not write its log, and answers nothing without"):
            site.answer(to_message(make_hello(terms)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert verify_audit(kit / "audit.jsonl").faults == ()


def test_entries_on_the_terminal(kit: Path) -> None:
    site, terms = Site(kit), make_terms("first")
    site.answer(to_message(make_hello(terms)))
    site.answer(parcel_of(terms, ("\x1b[2J",)))
    site.answer(parcel_of(terms))
    run = CliRunner().invoke
    reported = run(app, ["policy", "audit", str(kit)])
    assert reported.exit_code == 0
    assert "\x1b" not in reported.output
    rows = [line.split() for line in reported.output.splitlines()]
    assert [row[5] for row in rows[1:-1]] == ["approval,", "ledger", "hello,", "refused", "ledger", "Train"]
    assert "round 1; 1 client; " in reported.output
    assert len(run(app, ["policy", "audit", str(kit), "--entries", "1"]).output.splitlines()) == 3
    found = json.loads(run(app, ["policy", "audit", str(kit), "--json"]).output)
    assert (found["lines"], found["faults"], len(found["entries"])) == (6, [], 6)
    (kit / "audit.jsonl").write_bytes(b"".join(lines(kit / "audit.jsonl")[:-1]))
    cut = run(app, ["policy", "audit", str(kit)])
    assert cut.exit_code == 1
    assert "the end was cut off" in cut.output
