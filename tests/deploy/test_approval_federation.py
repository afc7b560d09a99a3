"""Approval on a real federation: a run waits for its sites, goes on with those that said yes, and another order of its name waits again."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare")

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.flare.operator import create_federation, supervise
from coterie.deploy.flare.processes import run_server, run_sites, wait_until
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.server.runs import RunFolder, read_journal
from coterie.deploy.site.audit import verify_kit_log
from coterie.deploy.site.data import SiteSettings
from deploy.running import free_port

SITES = ("hungary", "va")
PATIENCE = 400.0  # seconds for what takes 20 on a machine that has nothing else to do


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationFolder]:
    """Two sites with the policy that kits come with: every order waits for them."""
    found = create_federation(tmp_path_factory.mktemp("approving") / "f", "127.0.0.1", free_port(), SITES)
    over = Event()
    with ExitStack() as processes:
        server = processes.enter_context(run_server(found))
        for site in SITES:
            SiteSettings("heart", (site,), engine="loop", threads=1).write(found.kit(site))
        kits = {site: found.kit(site) for site in SITES}
        processes.enter_context(run_sites(kits, f"{found.host}:{found.port}", 90.0))
        attending = Thread(target=supervise, args=(found, lambda: over.is_set() or server.poll() is not None, lambda line: None, 0.3))
        attending.start()
        try:
            yield found
        finally:
            over.set()
            attending.join(30)


def coterie(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.exception
    return done.output


def launch(federation: FederationFolder, *words: str) -> str:
    return coterie("launch", *words, "--federation", str(federation.folder), "--detach")


def faults(run: RunFolder, after: int = 0) -> list[str]:
    return [line["sentence"] for line in read_journal(run.folder, after) if line["what"] == "fault"]


def waits_for(run: RunFolder, sites: tuple[str, ...]) -> bool:
    return wait_until(lambda: run.pending_sites == sites, PATIENCE)


def asked(federation: FederationFolder, site: str, run: str) -> list[dict[str, Any]]:
    path = federation.kit(site) / "audit.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [entry for entry in entries if entry.get("run") == run and "ask" in entry]


def test_a_run_waits_for_its_sites_and_takes_the_last_one_in_later(federation: FederationFolder) -> None:
    launch(federation, "fedavg", "--rounds", "60", "--epochs", "1", "--name", "first", "--minimum", "1", "--purpose", "a test")
    run = RunFolder(federation.runs / "first")
    assert waits_for(run, SITES)
    assert not any(asked(federation, site, "first") for site in SITES)
    assert "Waiting for approval at hungary, va" in faults(run)[-1]
    assert "a test" in coterie("policy", "orders", str(federation.kit("va")))
    coterie("policy", "approve", str(federation.kit("hungary")), "first")
    assert wait_until(lambda: bool(asked(federation, "hungary", "first")), PATIENCE)
    assert not asked(federation, "va", "first")
    coterie("policy", "approve", str(federation.kit("va")), "first")
    assert wait_until(lambda: run.status == "complete", PATIENCE), read_journal(run.folder)[-5:]
    began = [line["what"] for line in read_journal(run.folder)].count("began")
    assert began == 2
    assert asked(federation, "va", "first")
    orders = {entry["order"] for site in SITES for entry in asked(federation, site, "first")}
    assert len(orders) == 1
    for site in SITES:
        assert (federation.kit(site) / "bundles" / "first" / "fedavg" / "bundle.json").is_file()
        found = verify_kit_log(federation.kit(site) / "audit.jsonl", entries=1000)
        assert found.faults == ()
        assert {"flare log", "approval", "hello"} <= {entry.get("event") for entry in found.entries}


def test_another_order_of_the_same_name_waits_again_and_may_be_refused(federation: FederationFolder) -> None:
    run, before = RunFolder(federation.runs / "first"), len(asked(federation, "va", "first"))
    seen = len(read_journal(run.folder))
    launch(federation, "--resume", "--name", "first", "--rounds", "61")
    assert waits_for(run, SITES)
    coterie("policy", "refuse", str(federation.kit("va")), "first", "--reason", "60 are enough")
    coterie("policy", "approve", str(federation.kit("hungary")), "first")
    assert wait_until(lambda: run.status == "complete", PATIENCE)
    assert any("has refused the order" in fault and "60 are enough" in fault for fault in faults(run, seen))
    assert len(asked(federation, "va", "first")) == before
    assert max(entry["round"] for entry in asked(federation, "hungary", "first")) == 61


def test_what_cannot_be_resumed_is_said(federation: FederationFolder) -> None:
    done = CliRunner().invoke(
        app, ["launch", "--federation", str(federation.folder), "--resume", "--name", "first", "--epochs", "5", "--detach"]
    )
    assert isinstance(done.exception, UserError)
    assert "differs in plan.local.epochs" in str(done.exception)
