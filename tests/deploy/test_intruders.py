"""Members of a real federation that attack it with certificates of their own: a site, an operator, a removed site, a local user."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import psutil
import pytest

pytest.importorskip("nvflare")

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.certificates import revoke_site
from coterie.deploy.flare import operator, processes
from coterie.deploy.flare.transport import CHECK_INTERVAL
from coterie.deploy.server.federation import read_presence
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.settings import Settings
from deploy.intruder import Intruder, write_job_of_own
from deploy.running import MARK, Running

INTRUDER, VICTIM, REMOVED = "va", "hungary", "switzerland"
HONEST = ("cleveland", VICTIM)
LONG = Settings(methods=("fedavg",), data="heart", plan=Plan(rounds=5_000, local=Local(epochs=1)))
SHORT = Settings(methods=("fedavg",), data="heart", plan=Plan(rounds=2, local=Local(epochs=1)))


def settings_of(*sites: str) -> dict[str, SiteSettings]:
    return {name: SiteSettings(data="heart", clients=(name,), engine="loop", threads=1) for name in sites}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("f" * 90) / "federation"  # sockets have short names, folders may have long ones
    with Running(folder, settings_of(*HONEST), later=settings_of(INTRUDER, REMOVED)) as made:
        yield made


@pytest.fixture(scope="module")
def intruder(running: Running) -> Iterator[Intruder]:
    with Intruder(running.federation.kit(INTRUDER), INTRUDER, **{MARK: str(running.federation.folder)}) as made:
        yield made


def refused(running: Running, *words: str) -> bool:
    """Whether the server has written a refusal down in which these words are."""
    return any(
        "coterie.refused" in line and all(word in line for word in words)
        for line in (running.federation.server / "audit.log").read_text(encoding="utf-8").splitlines()
    )


def test_a_site_cannot_look_into_another_s_kit(running: Running, intruder: Intruder) -> None:
    found = intruder.attack("shell", peer=VICTIM)
    assert found["code"] != "ok", found
    assert refused(running, "origin 'va'", "destination 'hungary'")


@pytest.mark.parametrize("as_server", [False, True])
def test_a_site_cannot_delete_what_another_has(running: Running, intruder: Intruder, as_server: bool) -> None:
    folder = running.federation.kit(VICTIM) / "bundles"
    folder.mkdir(exist_ok=True)
    found = intruder.attack("delete", peer=VICTIM, folder=folder.name, as_server=as_server)
    assert found["code"] != "ok", found
    sleep(0.5)
    assert folder.exists()
    assert refused(running, "peer 'va'", f"origin '{'server' if as_server else INTRUDER}'", f"destination '{VICTIM}'")


def test_a_site_cannot_run_a_program_at_another(running: Running, intruder: Intruder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = intruder.attack("run_program", peer=VICTIM, out=str(out))
    assert {step["code"] for step in found.values()}.isdisjoint({"ok"}), found
    sleep(1)
    assert not out.exists()


def test_a_site_cannot_stop_or_examine_processes_of_others(running: Running, intruder: Intruder) -> None:
    for peer in (VICTIM, "server"):
        found = intruder.attack("stop_process", peer=peer)
        assert all(step["code"] != "ok" for step in found), found
    assert running.connected() >= set(HONEST)


@pytest.mark.parametrize("kind", ["code of its own", "configuration alone"])
def test_an_operator_s_own_job_runs_nowhere(running: Running, tmp_path: Path, kind: str) -> None:
    out, job = tmp_path / "run", tmp_path / "own"
    app = job / "app"
    if kind == "code of its own":
        (app / "custom").mkdir(parents=True)
        (app / "custom" / "evil.py").write_text(f"open({str(out)!r}, 'a').write('run ')\nclass Evil:\n    pass\n", encoding="utf-8")
        (app / "config").mkdir()
        client = {"format_version": 2, "components": [{"id": "x", "path": "evil.Evil", "args": {}}], "executors": []}
        (app / "config" / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")
    else:
        write_job_of_own(app, VICTIM, "x", str(out))
    server = {
        "format_version": 2,
        "components": [],
        "workflows": [{"id": "c", "path": "coterie.deploy.flare.controller.CoterieController"}],
    }
    server["workflows"][0]["args"] = {"run": "own"}  # type: ignore[index]
    (app / "config" / "config_fed_server.json").write_text(json.dumps(server), encoding="utf-8")
    meta = {"name": "own", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    with operator.open_session(running.federation) as session:
        number = session.submit_job(str(job))
        ended = processes.wait_until(lambda: "own" not in operator.list_active_jobs(session), 60)
    assert ended
    assert not out.exists()
    assert not [path for site in HONEST for path in (running.federation.kit(site) / number).glob("*")]
    assert "refused: a job with other files" in (running.federation.server / processes.LOG_FILE).read_text(errors="replace")


@pytest.fixture(scope="module")
def job(running: Running, intruder: Intruder) -> str:
    """A run that goes on while it is attacked."""
    running.wait_connected({*HONEST, INTRUDER})
    number = running.submit(LONG, "long", minimum=3)
    assert processes.wait_until(lambda: rounds(running) > 2, 120)
    return number


def rounds(running: Running) -> int:
    return sum(line["what"] == "round" for line in running.journal("long"))


def goes_on(running: Running) -> bool:
    """Whether rounds are added, some seconds after now, in the same job and with all sites."""
    sleep(1)
    before = rounds(running)
    more = processes.wait_until(lambda: rounds(running) > before + 2, 60)
    return more and len([line for line in running.journal("long") if line["what"] == "began"]) == 1


def test_one_port_at_the_server_and_none_elsewhere(running: Running, intruder: Intruder, job: str) -> None:
    listeners: dict[int, list[Any]] = {
        pid: [line.laddr for line in psutil.Process(pid).net_connections("inet") if line.status == psutil.CONN_LISTEN]
        for pid in set(running.pids()) - {intruder.process.pid}  # which does without Coterie's protection
    }
    kinds = {pid: kind for kind in ("site", "job", "trainer", "server", "server job") for pid in running.pids(kind)}
    assert set(kinds.values()) == {"site", "job", "trainer", "server", "server job"}
    assert {line.port for lines in listeners.values() for line in lines} == {running.federation.port}
    assert {kinds[pid] for pid, lines in listeners.items() if lines} == {"server"}


def test_another_user_of_the_machine_cannot_reach_a_job(running: Running, job: str) -> None:
    for workspace in (running.federation.server, running.federation.kit(VICTIM)):
        folder = workspace / "sockets"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(list(folder.iterdir())) == 1
    if os.getuid() == 0:
        place = next((running.federation.kit(VICTIM) / "sockets").iterdir())
        code = (
            f"import os, socket; os.chdir({str(place.parent)!r}); os.setuid(65534); socket.socket(socket.AF_UNIX).connect({place.name!r})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr, done.stderr


def test_a_site_gets_no_other_site_s_token(running: Running, intruder: Intruder, job: str) -> None:
    found = intruder.attack("clients", job=job)
    assert found["code"] != "ok", found
    marks = read_presence(running.federation.server).marks
    seen = set(intruder.attack("tokens"))
    assert marks[INTRUDER] in seen
    assert seen.isdisjoint({marks[name] for name in HONEST})


def test_a_site_cannot_fill_the_server_s_memory_with_names(running: Running, intruder: Intruder) -> None:
    """FLARE counts messages by the cells that they have passed, which a sender may invent."""
    server, count, length, batches = psutil.Process(running.processes["server"].pid), 300, 60_000, 8
    sizes = list[int]()
    for _ in range(2 + batches):
        assert intruder.attack("names", seconds=300, count=count, length=length) == count
        sizes.append(server.memory_info().rss)
    growth = min(sizes[-2:]) - max(sizes[:2])  # buffers and arenas grow at first; single readings vary by tens of MB
    assert growth < batches * count * length / 2, sizes  # names that stayed would be all of it


@pytest.mark.parametrize("attack", ["abort", "bulk", "fail", "garbage"])
def test_a_site_cannot_end_the_run(running: Running, intruder: Intruder, job: str, attack: str) -> None:
    found = intruder.attack(attack, job=job)
    assert "raised" not in (found if isinstance(found, dict) else {}), found
    assert goes_on(running), running.journal("long")[-3:]


def test_the_server_s_job_connects_to_nobody(running: Running, intruder: Intruder, job: str) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        port.settimeout(3)
        intruder.attack("call_out", job=job, port=port.getsockname()[1])
        with pytest.raises(TimeoutError):
            port.accept()


COMMANDS = [f"{what} {VICTIM} site.json" for what in ("cat", "head", "tail", "grep clients")]
COMMANDS += [
    f"ls {VICTIM}",
    f"pwd {VICTIM}",
    "cat server federation.json",
    "ls server",
    f"sys_info client {VICTIM}",
    f"report_env {VICTIM}",
]
COMMANDS += ["cells", f"stop_cell {VICTIM}", f"process_info {VICTIM}", f"configure_site_log {VICTIM} DEBUG", "dead x", "list_sessions"]
COMMANDS += [f"{what} {{job}}" for what in ("clone_job", "download_job", "delete_job", "get_job_log", "app_command")]


def test_an_operator_reads_nothing_and_deletes_nothing(running: Running, job: str) -> None:
    with operator.open_session(running.federation) as session:
        for command in (text.format(job=job) for text in COMMANDS):
            found = session.api.do_command(command)
            reply = json.dumps(found, default=str)
            assert "does not use this command" in reply or "not found" in reply, (command, found)
    audit = (running.federation.server / "audit.log").read_text(encoding="utf-8")
    assert f"cat {VICTIM} site.json" in audit


def test_the_operator_ends_the_run_and_another_goes_through(running: Running, job: str) -> None:
    with operator.open_session(running.federation) as session:
        session.abort_job(job)
    assert processes.wait_until(lambda: running.journal("long")[-1]["what"] == "ended", 60)
    assert running.journal("long")[-1]["status"] == "aborted"
    assert processes.wait_until(lambda: not running.pids("server job"), 60)
    lines = running.study(SHORT, "after", minimum=2)
    assert lines[-1]["status"] == "complete"


def test_a_removed_site_is_cut_off_at_once(running: Running) -> None:
    with Intruder(running.federation.kit(REMOVED), REMOVED, **{MARK: str(running.federation.folder)}) as site:
        running.wait_connected({REMOVED})
        assert site.attack("heartbeat", patient=True)["code"] == "ok"
        revoke_site(running.federation, REMOVED)
        assert processes.wait_until(lambda: REMOVED not in running.connected(), 4 * CHECK_INTERVAL + 5)
        log = site.kit / processes.LOG_FILE
        assert processes.wait_until(lambda: "is closed" in log.read_text(errors="replace"), 10)  # it may call again, and is heard no more
        assert site.attack("heartbeat")["code"] != "ok"
        assert site.attack("shell", peer=VICTIM)["code"] != "ok"


def test_a_kit_that_brings_more_is_refused(running: Running, tmp_path: Path) -> None:
    kit = Path(shutil.copytree(running.federation.kit(REMOVED), tmp_path / "kit", ignore=shutil.ignore_patterns("sockets")))
    (kit / "local" / "custom").mkdir()
    with pytest.raises(Exception, match="no part of a kit that Coterie makes"):
        processes.start_site(kit, REMOVED)
