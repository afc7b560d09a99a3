"""A real federation under attack: strangers get nowhere, and what a member sends wrongly costs no other site a round."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.certificates import load_authority, read_certificate
from coterie.deploy.flare import operator, processes
from coterie.deploy.flare.jobs import ADMIN
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.reader import Evidence
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.evidence.verify import verify
from deploy.lying import LIES
from deploy.running import Running, absences

TESTS = Path(__file__).parents[1]
LIAR, HONEST, SITE = "va", ("cleveland", "hungary"), "hungary"
ALL = {*HONEST, LIAR}
HUGE = 300_000_000
WRONG = {  # by training, one a round; models are scored before the first round, too
    "2": "replay",
    "3": "another shape",
    "4": "no number",
    "5": "a pickle",
    "6": f"{HUGE} bytes",
    "7": "a hundred times too large",
    "8": "steps of -2^62",
    "9": "nonsense in FLARE's own form",
    "evaluation 3": "more hits than samples",
    "evaluation 4": "negative hits",
}
STUDY = Settings(methods=("fedavg", "robust(groups=1,trim=0.4)"), data="heart", plan=Plan(rounds=9, local=Local(epochs=1)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three sites, of which one lies."""
    sites = {name: SiteSettings(data="heart", clients=(name,), engine="loop", threads=1) for name in (*HONEST, LIAR)}
    liar = {LIAR: sites.pop(LIAR)}
    with Running(tmp_path_factory.mktemp("attacked") / "federation", sites, later=liar) as made:
        (made.federation.kit(LIAR) / LIES).write_text(json.dumps(WRONG))
        made.start_site(LIAR, PYTHONPATH=os.pathsep.join([str(TESTS / "deploy" / "lying_site"), str(TESTS)]))
        made.wait_connected(ALL)
        yield made


def greeting(running: Running, certificate: Path | None = None, key: Path | None = None) -> bytes:
    """What the server's port answers to the first bytes of gRPC, with a client's certificate or none; nothing where it hangs up."""
    context = ssl.create_default_context(cafile=str(running.federation.kit(SITE) / "startup" / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    try:
        with (
            socket.create_connection(("127.0.0.1", running.federation.port), 5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.settimeout(10)
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return line.recv(100)
    except TimeoutError:
        raise
    except OSError:  # TLS 1.3 reports after the handshake that a certificate is missing or wrong
        return b""


def test_without_a_certificate_no_answer_comes(running: Running) -> None:
    startup = running.federation.kit(SITE) / "startup"
    assert greeting(running) == b""
    assert greeting(running, startup / "client.crt", startup / "client.key") != b""
    with socket.create_connection(("127.0.0.1", running.federation.port), 5) as plain:  # and without TLS
        plain.settimeout(10)
        with suppress(ConnectionError):
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            assert b"\0\0\0\0" not in plain.recv(100)  # no settings of HTTP/2; an alert of TLS at most


@pytest.mark.parametrize("kind", ["self-signed", "another authority of the same name", "expired", "not valid yet", "signed by a site"])
def test_no_wrong_certificate_is_let_in(running: Running, kind: str, tmp_path: Path) -> None:
    root, root_key = load_authority(running.federation)
    startup = running.federation.kit(SITE) / "startup"
    site, site_key = read_certificate(startup / "client.crt"), load_pem_private_key((startup / "client.key").read_bytes(), None)
    own: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer, signer = {
        "self-signed": (site.subject, own),
        "another authority of the same name": (root.subject, rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        "signed by a site": (site.subject, site_key),
    }.get(kind, (root.subject, root_key))
    begins = datetime.now(UTC) + timedelta(days={"expired": -9, "not valid yet": 3}.get(kind, -1))
    made = x509.CertificateBuilder().subject_name(site.subject).issuer_name(issuer).public_key(own.public_key()).serial_number(7)
    made = made.not_valid_before(begins).not_valid_after(begins + timedelta(days=5))
    pem = made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    (tmp_path / "crt").write_bytes(pem + ((startup / "client.crt").read_bytes() if kind == "signed by a site" else b""))
    (tmp_path / "key").write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert greeting(running, tmp_path / "crt", tmp_path / "key") == b""


@pytest.fixture(scope="module")
def intruders(running: Running, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kits that must not be let in, all started at once; the logs of the attempts."""
    folder = tmp_path_factory.mktemp("intruders")
    federation = running.federation
    other = operator.create_federation(folder / "other", federation.host, federation.port, ["stranger"])
    half = shutil.copytree(other.kit("stranger"), folder / "half")  # knows our authority, but its certificate is of another
    shutil.copy(federation.kit(SITE) / "startup" / "rootCA.pem", half / "startup" / "rootCA.pem")
    claims = shutil.copytree(federation.kit(SITE), folder / "claims", ignore=shutil.ignore_patterns("*.log", "sockets"))
    named = claims / "kit.json"
    named.write_text(named.read_text().replace(f'"{SITE}"', f'"{LIAR}"'))
    kits = {"stranger": other.kit("stranger"), "half": half, LIAR: claims}
    names = {"stranger": "stranger", "half": "stranger", LIAR: LIAR}
    started = [running.start_site(names[kind], kit) for kind, kit in kits.items()]
    log = federation.server / processes.LOG_FILE
    processes.wait_until(lambda: "authenticated as" in log.read_text(errors="replace"), 25)
    sleep(2)
    for process in started:
        process.kill()
        process.wait()
    return {name: kit / processes.LOG_FILE for name, kit in kits.items()}


def test_certificates_of_another_authority_are_never_registered(running: Running, intruders: dict[str, Path]) -> None:
    for name in ("stranger", "half"):
        assert "Successfully registered" not in intruders[name].read_text(errors="replace")
    assert running.connected() == ALL


def test_a_site_that_claims_another_s_name_is_refused(running: Running, intruders: dict[str, Path]) -> None:
    assert "Successfully registered" not in intruders[LIAR].read_text(errors="replace")
    log = (running.federation.server / processes.LOG_FILE).read_text(errors="replace")
    assert f"authenticated as '{SITE}' but claimed endpoint '{LIAR}'" in log


COMMANDS = """
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
name, kit = sys.argv[1:]
try:
    session = new_secure_session(name, kit, timeout=8)
except BaseException as error:
    print("no session", type(error).__name__, flush=True)
    os._exit(0)
for what, command in {
    "status": lambda: session.get_system_info(),
    "submit": lambda: session.submit_job(kit),
    "list": lambda: session.list_jobs(),
    "disable": lambda: session.disable_client("hungary"),
    "shutdown": lambda: session.shutdown("all"),
}.items():
    try:
        command()
        print(what, "ALLOWED", flush=True)
    except BaseException as error:
        print(what, type(error).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("name", [ADMIN, SITE])
def test_a_site_cannot_act_as_the_operator(running: Running, name: str, tmp_path: Path) -> None:
    kit = Path(shutil.copytree(running.federation.admin, tmp_path / "admin"))
    for file in ("client.crt", "client.key"):
        shutil.copy(running.federation.kit(SITE) / "startup" / file, kit / "startup" / file)
    (kit / "meta.json").write_text('{"name": "x", "min_clients": 1, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}')
    (kit / "app" / "config").mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", COMMANDS, name, str(kit)], capture_output=True, text=True, timeout=60, check=False)
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("no session", "status", "submit", "list", "disable", "shutdown"))
    ]
    assert lines, done.stderr
    assert "ALLOWED" not in done.stdout, done.stdout
    assert lines[0].startswith("no session"), done.stdout + done.stderr  # whatever name it gives: its certificate is a site's
    assert running.wait_connected(ALL, 30) < 30  # a site that claims to be an operator by its own name is not there for a moment


def peaks(running: Running) -> dict[int, int]:
    """By process of the server, the most memory that it ever had, in bytes."""
    found = {}
    for pid in [*running.pids("server"), *running.pids("server job")]:
        with suppress(OSError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found[pid] = int(lines["VmHWM"].split()[0]) * 1024
    return found


def test_wrong_messages_cost_only_their_site_the_round(running: Running) -> None:
    running.wait_connected(running.federation.sites)  # one that posed as the operator was gone for a moment
    memory: dict[int, dict[int, int]] = {}  # by rounds done, the peaks so far

    def watch(lines: list[dict[str, Any]]) -> None:
        if all(line["what"] != "ended" for line in lines):
            memory[sum(line["what"] == "round" for line in lines) // 2] = peaks(running)

    journal = running.study(STUDY, "lied-to", minimum=3, timeout=20.0, disturb=watch)
    late = {(9, LIAR, "ABSENT")}  # what cannot be decoded it sends again, in time or not
    found = absences(running.study_folder("lied-to")) - late
    assert found == {
        (2, LIAR, "UNREADABLE"),  # the answer to the question before
        (3, LIAR, "WRONG_SHAPE"),
        (4, LIAR, "NOT_FINITE"),
        (5, LIAR, "UNREADABLE"),  # a pickle is not even opened
        (6, LIAR, "TOO_LARGE"),  # dropped while it came in
        (7, LIAR, "TOO_FAR"),  # a hundred times too large
        (8, LIAR, "INVALID"),  # fewer steps than none
        (2, LIAR, "INVALID"),  # more hits than samples, by the models of round 2
        (3, LIAR, "INVALID"),
    }
    last = max(place for place, line in enumerate(journal) if line["what"] == "round")
    assert sum(line["what"] == "began" for line in journal[:last]) == 1  # nothing ended the job; after it, the liar may be let in again
    before, after = memory[4], memory[max(memory)]
    assert before.keys() == after.keys()
    assert max(after[pid] - before[pid] for pid in before) < HUGE / 2
    assert verify(running.study_folder("lied-to")).whole
    evidence = Evidence.open(running.study_folder("lied-to"))
    assert sorted(set(evidence.frame("rounds")["round"])) == list(range(STUDY.plan.rounds + 1))
    states: list[Any] = [lane.state for lane in load_lanes(running.study_folder("lied-to")).lanes.values()]
    plain, robust = (state.models for state in states)
    assert np.abs(plain).max() < 3 * np.abs(robust).max()  # it moved no other site


@pytest.fixture(scope="module")
def asynchronous(running: Running) -> list[dict[str, Any]]:
    """The journal of an asynchronous run without the liar, whose card claims a client of another site.

    One of the two honest sites stands still for the first rounds, and the other continues alone; then the other stands still, and the slow
    one's answer to an early question comes.
    """
    (running.federation.kit(LIAR) / LIES).write_text(json.dumps({"card": "a client of another site"}))
    fast, slow = HONEST
    steps = [(0, signal.SIGSTOP, slow), (3, signal.SIGCONT, slow), (3, signal.SIGSTOP, fast), (6, signal.SIGCONT, fast)]
    signalled = []

    def disturb(lines: list[dict[str, Any]]) -> None:
        reached = max((line["round"] for line in lines if line["what"] == "round"), default=-1)
        while steps and steps[0][0] <= reached:
            _, number, site = steps.pop(0)
            signalled.append(len(running.signal(number, "trainer", site)))

    plan = Plan(rounds=8, buffer_size=1, evaluate_every=8, local=Local(epochs=1))
    journal = running.study(replace(STUDY, methods=("fedavg",), plan=plan), "own-time", minimum=2, disturb=disturb)
    assert signalled == [1] * 4
    return journal


def test_a_slow_site_delays_no_other_and_counts_when_it_comes(running: Running, asynchronous: list[dict[str, Any]]) -> None:
    evidence = Evidence.open(running.study_folder("own-time"))
    notes = evidence.frame("notes").pivot_table(index="round", columns="name", values="value", aggfunc="first")
    came = {round_: dict(zip(json.loads(row["arrived"]), json.loads(row["staleness"]), strict=True)) for round_, row in notes.iterrows()}
    assert list(came) == list(range(1, 9))
    assert all(len(each) == 1 for each in came.values())  # each round continues with one answer
    assert max(each.get(1, 0) for each in came.values()) >= 2
    assert not len(evidence.table("absences"))
    clients = evidence.frame("clients")
    assert sorted(clients[clients["round"] == 8]["client"]) == [0, 1]  # in the end all sites are waited for
    assert (evidence.frame("rounds")["clock"].diff()[1:] > 0).all()


def test_a_false_card_costs_only_its_site_the_job(running: Running, asynchronous: list[dict[str, Any]]) -> None:
    """It claims a client of another site, over real processes."""
    faults = [line["sentence"] for line in asynchronous if line["what"] == "fault"]
    assert faults == [
        f"Site '{LIAR}' does not take part: it has a client '{SITE}', which is a client of site '{SITE}': give it another id."
    ]
    assert Evidence.open(running.study_folder("own-time")).roster["id"].to_pylist() == list(HONEST)
    assert verify(running.study_folder("own-time")).whole
