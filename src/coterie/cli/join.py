"""`coterie join`: a site takes part in a federation with its own data."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options
from coterie.cli.terminal import stop_on_terminate


def join(
    kit: Annotated[Path, typer.Argument(help="The site's kit: the folder that the operator handed over.", metavar="KIT")],
    data: Annotated[
        list[str],
        typer.Option(help="The site's data, such as 'csv(FILE,label=COLUMN)'. They stay here. Several, or WARD=DATA: a client for each."),
    ],
    clients: Annotated[str | None, typer.Option(help="Which clients of the data this site holds: a,b. Default: all.")] = None,
    data_seed: options.DataSeed = None,
    data_dir: options.DataDir = None,
    engine: Annotated[str, typer.Option(help="How clients are trained: auto, batched or loop.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads. Default: all cores.", min=1)] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server.", min=1)] = 60.0,
    accept: options.Accept = False,
) -> None:
    """Take part with a site's data, until Ctrl-C.

    The site answers the server as far as the kit's policy.toml allows.
    A new order is shown in words and answered after 'coterie policy approve KIT ORDER', or where policy.toml approves it ([approve]).
    """
    from coterie._util.errors import check_names
    from coterie.data.wards import is_named, parse_sources
    from coterie.deploy.certificates import check_kit
    from coterie.deploy.files import keep_private
    from coterie.deploy.flare.processes import check_site_running, run_sites
    from coterie.deploy.site.approvals import SiteMonitor
    from coterie.deploy.site.audit import Audit
    from coterie.deploy.site.data import SiteSettings, describe_site_data
    from coterie.deploy.site.policy import read_policy

    stop_on_terminate()
    check_names([engine], ("auto", "batched", "loop"), "engine")
    site, server = check_kit(kit)
    keep_private(kit)
    policy = read_policy(kit / "policy.toml")
    chosen = tuple(name.strip() for name in clients.split(",")) if clients else None
    folder = str(data_dir.absolute()) if data_dir else None
    wards = parse_sources(data) if len(data) > 1 or is_named(data[0]) else {}
    settings = SiteSettings(", ".join(wards) or data[0], chosen, data_seed or 0, folder, engine, threads, str(Path.cwd()), wards)
    for line in describe_site_data(settings, site, policy, accept=accept):
        print(line, flush=True)
    print(f"Looking for {server} ...", flush=True)
    news, audit = SiteMonitor(kit), Audit(kit / "audit.jsonl")
    audit.chain_flare_log()
    try:
        with run_sites({site: kit}, server, wait, {site: settings}) as (process,):
            print(f"{site} takes part. What leaves is in {kit / 'audit.jsonl'}; Ctrl-C ends it.", flush=True)
            print("Every order is approved by policy.toml." if policy.approve.any else f"Orders: coterie policy orders {kit}.", flush=True)
            for line in news.waiting_orders():
                print(line, flush=True)
            while True:
                check_site_running(kit, site, server, process)
                for line in news.wait(1.0):
                    print(line, flush=True)
    except KeyboardInterrupt:
        audit.chain_flare_log()
        print(f"{site} has left. It may join again at any time.", flush=True)
