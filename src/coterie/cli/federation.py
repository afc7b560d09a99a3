"""`coterie federation`: certificates, kits, sites and runs of a real federation, and a demonstration of one on this machine."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from coterie._util.errors import UserError
from coterie.cli import options
from coterie.cli.federation_monitor import monitor
from coterie.cli.federation_tables import schema, statistics
from coterie.cli.terminal import stop_on_terminate

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.federation import FederationFolder
HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
GROUPED_METHOD = "fedgroup(groups=2,alpha=2)"
METHODS = ("fedavg", "local", GROUPED_METHOD, GROUPED_METHOD[:-1] + ",assign=random)")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the federation.")] = Path("runs/federation-demo"),
    rounds: Annotated[int, typer.Option(help="Rounds.", min=1)] = 8,
    seeds: Annotated[int, typer.Option(help="Seeds.", min=1)] = 2,
) -> None:
    """Four hospitals and a server on this machine: certificates, TLS, a comparison, its report. Takes one to two minutes on two cores."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.flare.operator import create_federation

    stop_on_terminate()
    began, console = monotonic(), PlainConsole()
    federation = create_federation(out, "127.0.0.1", _find_free_port(), HOSPITALS)
    console.print(f"A federation in {out}: an authority, a server, {len(HOSPITALS)} kits.")
    try:
        page = _run_demo(federation, rounds, seeds, console)
    except KeyboardInterrupt:
        raise UserError(f"Stopped; everything that was started has ended. {out} may be deleted.") from None
    console.print(f"Everything is stopped, after {monotonic() - began:.0f} s. The page: {page}", soft_wrap=True)


def _run_demo(federation: "FederationFolder", rounds: int, seeds: int, console: "PlainConsole") -> Path:
    from coterie.cli.federation_status import follow_run
    from coterie.cli.launch import set_default_share
    from coterie.cli.tables import print_result
    from coterie.core.local import Local
    from coterie.core.plan import Plan
    from coterie.deploy.flare.operator import supervise
    from coterie.deploy.flare.processes import run_server, run_sites
    from coterie.deploy.server.runs import Order, make_run
    from coterie.deploy.site.data import SiteSettings
    from coterie.deploy.site.policy import approve_orders
    from coterie.evidence.reader import Evidence
    from coterie.evidence.settings import Settings
    from coterie.report import write_report
    from coterie.run.result import Result

    plan = Plan(rounds=rounds, local=Local(epochs=2, lr=0.05))
    settings = set_default_share(Settings(methods=METHODS, data="heart", plan=plan, seeds=tuple(range(seeds))), len(HOSPITALS))
    run = make_run(federation, "demo")
    with ExitStack() as running:
        process = running.enter_context(run_server(federation))
        console.print(f"The server listens on {federation.host}:{federation.port}, with TLS.")
        for site in HOSPITALS:
            SiteSettings("heart", (site,), engine="loop", threads=1).write(federation.kit(site))
            policy = federation.kit(site) / "policy.toml"  # the data are public, and one hospital has 9 patients to test on
            policy.write_text(policy.read_text().replace("\nrounding = 3\n", "\nrounding = 1\n").replace("samples = 10", "samples = 5"))
            approve_orders(federation.kit(site) / "policy.toml", methods=METHODS, models=[settings.model], maximum_rounds=rounds)
        console.print(f"Each hospital's policy.toml approves this order by itself: its methods, {settings.model}, {rounds} rounds.")
        kits = {site: federation.kit(site) for site in HOSPITALS}
        running.enter_context(run_sites(kits, f"{federation.host}:{federation.port}", 90.0))
        console.print(f"{', '.join(HOSPITALS)} have joined, each with its own patients.")
        run.place(Order("demo", "study", settings.as_json(), HOSPITALS, len(HOSPITALS), operator="coterie federation demo"), 120.0)
        over = Event()
        attending = Thread(target=supervise, args=(federation, lambda: over.is_set() or process.poll() is not None, console.print))
        attending.start()
        try:
            status = follow_run(federation, run, console)
        finally:
            over.set()
            attending.join()
    if status != "complete":
        raise UserError(f"The study ended early ({status}): {run.status_details.get('reason', '')}")
    print_result(Result(Evidence.open(run.study)), console)
    return write_report(run.study).page


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


app = typer.Typer(help="Certificates, kits, sites and runs of a federation.", no_args_is_help=True)
app.command("demo")(demo)
app.command("monitor")(monitor)
app.command("schema")(schema)
app.command("statistics")(statistics)
Folder = Annotated[Path, typer.Argument(help="The federation's folder, on the server's machine.", metavar="DIR")]
Name = Annotated[str, typer.Argument(help="The site's name.", metavar="SITE")]


@app.command("init")
def init_federation(
    folder: Folder,
    server: Annotated[str, typer.Option(help="Where sites reach the server: HOST:PORT.")],
    sites: Annotated[str, typer.Option(help="The sites' names: a,b,c.")],
) -> None:
    """Make a federation: an authority, the server's certificate, and a kit for every site."""
    from coterie.deploy.flare.operator import create_federation
    from coterie.deploy.server.federation import parse_address

    host, port = parse_address(server)
    made = create_federation(folder, host, port, [name.strip() for name in sites.split(",") if name.strip()])
    for site in made.sites:
        print(f"Hand {made.kit(site)} to {site}: there, 'coterie join {site} --data ...'.")
    print("A site answers an order after 'coterie policy approve', or by itself where [approve] in its policy.toml lists the order.")
    print(f"Then, on {host}: coterie serve {folder}")


@app.command("add")
def add_site(
    folder: Folder,
    site: Name,
    again: Annotated[bool, typer.Option("--again", help="Restore a site that was removed, with its certificate.")] = False,
) -> None:
    """Add a site. The server may keep running."""
    from coterie.deploy.certificates import restore_site
    from coterie.deploy.flare.operator import add_site, send_site_command
    from coterie.deploy.server.federation import FederationFolder

    federation = FederationFolder.open(folder)
    if not again:
        print(f"Hand {add_site(federation, site).kit(site)} to {site}.")
        return
    if site not in federation.removed:
        raise UserError(f"The site {site!r} was not removed: omit --again.")
    send_site_command(restore_site(federation, site), "enable", site)
    print(f"{site} may join again.")


@app.command("remove")
def remove_site(folder: Folder, site: Name) -> None:
    """Remove a site at once: it is not asked again and cannot rejoin."""
    from coterie.deploy.certificates import revoke_site
    from coterie.deploy.flare.operator import send_site_command
    from coterie.deploy.server.federation import FederationFolder

    federation = revoke_site(FederationFolder.open(folder), site)
    is_running = send_site_command(federation, "disable", site)
    when = "" if is_running else " (no server runs; it takes effect when one starts)"
    print(f"{site} is removed{when}. Its answers so far stay in the evidence.")


@app.command("roster")
def set_roster(
    folder: Folder,
    site: Annotated[str | None, typer.Argument(help="The site's name; without it, all claims are printed.", metavar="[SITE]")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients that the site may claim, at most.")] = None,
    samples: Annotated[int | None, typer.Option(help="Training samples that it may claim in total, at most.")] = None,
    ids: Annotated[str | None, typer.Option(help="The ids of its clients, the only ones that it may have: a,b,c.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete what was set for the site.")] = False,
) -> None:
    """Set what a site may claim to have. Without an entry, what it first reports in a run. Valid from the next job on."""
    from coterie._util.errors import suggest_names
    from coterie.deploy.server.federation import Claim, FederationFolder, read_roster, write_roster

    federation = FederationFolder.open(folder)
    roster = read_roster(folder)
    if site is None:
        for name, own in roster.items():
            print(f"{name}: {own}")
        return
    if site not in federation.sites:
        raise UserError(f"The federation {folder} has no site {site!r}: {suggest_names(site, federation.sites)}")
    if not clear and clients is None and samples is None and ids is None:
        raise UserError("Specify what the site may claim: --clients N, --samples N or --ids a,b,c; or --clear to delete what was set.")
    roster.pop(site, None)
    if not clear:
        listed = None if ids is None else tuple(name.strip() for name in ids.split(",") if name.strip())
        roster[site] = Claim(clients, samples, listed)
    write_roster(folder, roster)
    print(f"{site}: {roster.get(site, 'what it first reports in a run')}")


@app.command("request")
def make_request(site: Name, out: Annotated[Path, typer.Option(help="Folder for the key and the request.")]) -> None:
    """At a site: make a key, which stays there, and a request that the operator signs."""
    from coterie.deploy.flare.operator import request_certificate

    path = request_certificate(site, out)
    print(f"Send {path} to the operator. The key {out / 'client.key'} stays here; put it into the kit's startup/ folder.")


@app.command("sign")
def sign_request(
    folder: Folder, site: Name, file: Annotated[Path, typer.Argument(help="The site's request (.csr).", metavar="FILE")]
) -> None:
    """At the operator's: a kit, without a key, for a site that made its key itself."""
    from coterie.deploy.flare.operator import sign_request
    from coterie.deploy.server.federation import FederationFolder

    federation = sign_request(FederationFolder.open(folder), site, file)
    print(f"Hand {federation.kit(site)} to {site}: it puts its client.key into startup/ there.")


@app.command("renew")
def renew_certificates(
    folder: Folder,
    names: Annotated[list[str] | None, typer.Argument(help="Sites, server or operator. Default: all.", metavar="[NAME]...")] = None,
) -> None:
    """Renew the certificates of existing keys. No key is sent: a site puts its new certificate into its kit."""
    from coterie.deploy.certificates import renew_certificates
    from coterie.deploy.server.federation import FederationFolder

    federation = FederationFolder.open(folder)
    for name, path, ends in renew_certificates(federation, names or ()):
        is_site = name in federation.sites
        use = f"send {path} to {name}, for startup/ of its kit; it joins again" if is_site else "used from its next start on"
        print(f"{name}: valid until {ends:%Y-%m-%d}; {use}.")


@app.command("stop")
def stop_run(folder: Folder, run: Annotated[str, typer.Argument(help="The run's name.", metavar="RUN")]) -> None:
    """Stop a run. Its rounds so far are kept: 'coterie launch --resume --name RUN' resumes it."""
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.runs import END_STATES, find_run

    found = find_run(FederationFolder.open(folder), run)
    if found.status in END_STATES:
        raise UserError(f"The run {run!r} has ended already ({found.status}).")
    found.request_stop()
    print(f"The server stops {run} in a moment.")


@app.command("status")
def show_status(folder: Folder, web: options.Web = False, port: options.Port = 0, as_json: options.AsJson = False) -> None:
    """Print which sites are connected, the runs with their progress, and the group of each client; or show it as a page."""
    from coterie.cli.console import PlainConsole
    from coterie.cli.federation_status import print_status
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.status import summarize_federation

    if web:
        from coterie.cli.show import serve_page

        serve_page(lambda: summarize_federation(FederationFolder.open(folder)), port, as_json=as_json)
        return
    found = summarize_federation(FederationFolder.open(folder))
    print_status(found, PlainConsole(stderr=as_json))
    if as_json:
        print(json.dumps(found))
