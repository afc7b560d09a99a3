"""`coterie federation demo`: everything at once, on this machine."""

import socket
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.stopping import stop_on_terminate
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.deploy.federation import FederationFolder

HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
GROUPED = "fedgroup(groups=2,alpha=2)"
METHODS = ("fedavg", "local", GROUPED, GROUPED[:-1] + ",assign=random)")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the federation.")] = Path("runs/federation-demo"),
    rounds: Annotated[int, typer.Option(help="Rounds.", min=1)] = 8,
    seeds: Annotated[int, typer.Option(help="Seeds.", min=1)] = 2,
) -> None:
    """Four hospitals and a server on this machine: certificates, TLS, a comparison, its report. Takes one to two minutes on two cores."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.flare.provision import create

    stop_on_terminate()
    began, console = monotonic(), PlainConsole()
    federation = create(out, "127.0.0.1", _free_port(), HOSPITALS)
    console.print(f"A federation in {out}: an authority, a server, {len(HOSPITALS)} kits.")
    try:
        page = _carry_out(federation, rounds, seeds, console)
    except KeyboardInterrupt:
        raise UserError(f"Stopped; everything that was started has ended. {out} may be deleted.") from None
    console.print(f"Everything is stopped, after {monotonic() - began:.0f} s. The page: {page}", soft_wrap=True)


def _carry_out(federation: "FederationFolder", rounds: int, seeds: int, console: "object") -> Path:
    from coterie.cli.console import PlainConsole
    from coterie.cli.following import follow
    from coterie.cli.launch import with_usual_share
    from coterie.cli.results import print_result
    from coterie.core.local import Local
    from coterie.core.plan import Plan
    from coterie.deploy.default_policy import approve_orders
    from coterie.deploy.flare.server_process import running_server
    from coterie.deploy.flare.site_client import running_sites
    from coterie.deploy.flare.supervisor import supervise
    from coterie.deploy.runs import new_run
    from coterie.deploy.server_run import Order
    from coterie.deploy.site_process import SiteSettings
    from coterie.evidence.reader import Evidence
    from coterie.evidence.settings import Settings
    from coterie.report import report
    from coterie.run.result import Result

    assert isinstance(console, PlainConsole)
    plan = Plan(rounds=rounds, local=Local(epochs=2, lr=0.05))
    settings = with_usual_share(Settings(methods=METHODS, data="heart", plan=plan, seeds=tuple(range(seeds))), len(HOSPITALS))
    run = new_run(federation, "demo")
    with ExitStack() as running:
        process = running.enter_context(running_server(federation))
        console.print(f"The server listens on {federation.host}:{federation.port}, with TLS.")
        for site in HOSPITALS:
            SiteSettings("heart", (site,), engine="loop", threads=1).write(federation.kit(site))
            policy = federation.kit(site) / "policy.toml"  # the data are public, and one hospital has 9 patients to test on
            policy.write_text(policy.read_text().replace("\nrounding = 3\n", "\nrounding = 1\n").replace("samples = 10", "samples = 5"))
            approve_orders(federation.kit(site) / "policy.toml", methods=METHODS, models=[settings.model], maximum_rounds=rounds)
        console.print(f"Each hospital's policy.toml approves this order by itself: its methods, {settings.model}, {rounds} rounds.")
        kits = {site: federation.kit(site) for site in HOSPITALS}
        running.enter_context(running_sites(kits, f"{federation.host}:{federation.port}", 90.0))
        console.print(f"{', '.join(HOSPITALS)} have joined, each with its own patients.")
        run.place(Order("demo", "study", settings.as_json(), HOSPITALS, len(HOSPITALS), operator="coterie federation demo"), 120.0)
        over = Event()
        attending = Thread(target=supervise, args=(federation, lambda: over.is_set() or process.poll() is not None, console.print))
        attending.start()
        try:
            status = follow(federation, run, console)
        finally:
            over.set()
            attending.join()
    if status != "complete":
        raise UserError(f"The study ended early ({status}): {run.told.get('reason', '')}")
    print_result(Result(Evidence.open(run.study)), console)
    return report(run.study).page


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
