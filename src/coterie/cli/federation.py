"""`coterie federation`: certificates, kits and who takes part."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import demo, options

app = typer.Typer(help="A real federation: certificates, kits, who is there.", no_args_is_help=True)
app.command("demo")(demo.demo)
Folder = Annotated[Path, typer.Argument(help="The federation's folder, on the server's machine.", metavar="DIR")]
Name = Annotated[str, typer.Argument(help="The site's name.", metavar="SITE")]


@app.command("init")
def init(
    folder: Folder,
    server: Annotated[str, typer.Option(help="Where sites reach the server: HOST:PORT.")],
    sites: Annotated[str, typer.Option(help="The sites' names: a,b,c.")],
) -> None:
    """Make a federation: an authority, the server's certificate, and a kit for every site."""
    from coterie.deploy.federation import server_address
    from coterie.deploy.flare.provision import create

    host, port = server_address(server)
    made = create(folder, host, port, [name.strip() for name in sites.split(",") if name.strip()])
    for site in made.sites:
        print(f"Hand {made.kit(site)} to {site}: there, 'coterie join {site} --data ...'.")
    print(f"Then, on {host}: coterie serve {folder}")


@app.command("add")
def add_site(
    folder: Folder,
    site: Name,
    again: Annotated[bool, typer.Option("--again", help="Take back a site that was removed, with the certificate it had.")] = False,
) -> None:
    """One site more. The server need not be stopped."""
    from coterie.core.errors import UserError
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.flare.provision import add
    from coterie.deploy.flare.sessions import tell_server
    from coterie.deploy.removal import take_back

    federation = FederationFolder.open(folder)
    if not again:
        print(f"Hand {add(federation, site).kit(site)} to {site}.")
        return
    if site not in federation.removed:
        raise UserError(f"The site {site!r} was not removed: leave --again away.")
    tell_server(take_back(federation, site), "enable", site)
    print(f"{site} may join again.")


@app.command("remove")
def remove(folder: Folder, site: Name) -> None:
    """Take a site out: it is not asked any more, at once, and cannot come in again."""
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.flare.sessions import tell_server
    from coterie.deploy.removal import remove_site

    federation = remove_site(FederationFolder.open(folder), site)
    told = tell_server(federation, "disable", site)
    print(
        f"{site} is removed{'' if told else ' (no server runs; it will know when it starts)'}. What it has answered stays in the evidence."
    )


@app.command("roster")
def set_roster(
    folder: Folder,
    site: Annotated[str | None, typer.Argument(help="The site's name; without it, all that is set is shown.", metavar="[SITE]")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients that the site may say it has, at most.")] = None,
    samples: Annotated[int | None, typer.Option(help="Training samples that it may say they have together, at most.")] = None,
    ids: Annotated[str | None, typer.Option(help="The ids of its clients, the only ones that it may have: a,b,c.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Forget what was set for the site.")] = False,
) -> None:
    """What a site may claim to have. Without an entry it may claim what it first says in a run. It counts from the next job on."""
    from coterie.core.errors import UserError, suggestion
    from coterie.deploy.federation import Claim, FederationFolder, read_roster, write_roster

    federation = FederationFolder.open(folder)
    roster = read_roster(folder)
    if site is None:
        for name, own in roster.items():
            print(f"{name}: {own}")
        return
    if site not in federation.sites:
        raise UserError(f"The federation {folder} has no site {site!r}: {suggestion(site, federation.sites)}")
    if not clear and clients is None and samples is None and ids is None:
        raise UserError("Say what the site may claim: --clients N, --samples N or --ids a,b,c; or --clear to forget what was set.")
    roster.pop(site, None)
    if not clear:
        listed = None if ids is None else tuple(name.strip() for name in ids.split(",") if name.strip())
        roster[site] = Claim(clients, samples, listed)
    write_roster(folder, roster)
    print(f"{site}: {roster.get(site, 'what it first says in a run')}")


@app.command("request")
def make_request(site: Name, out: Annotated[Path, typer.Option(help="Folder for the key and the request.")]) -> None:
    """At a site: make a key, which stays there, and a request that the operator signs."""
    from coterie.deploy.flare.provision import request

    path = request(site, out)
    print(f"Send {path} to the operator. The key {out / 'client.key'} stays here; put it into the kit's startup/ folder.")


@app.command("sign")
def sign_request(
    folder: Folder, site: Name, file: Annotated[Path, typer.Argument(help="The site's request (.csr).", metavar="FILE")]
) -> None:
    """At the operator's: a kit, without a key, for a site that made its key itself."""
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.flare.provision import sign

    federation = sign(FederationFolder.open(folder), site, file)
    print(f"Hand {federation.kit(site)} to {site}: it puts its client.key into startup/ there.")


@app.command("renew")
def renew_certificates(
    folder: Folder,
    names: Annotated[list[str] | None, typer.Argument(help="Sites, server or operator; all unless given.", metavar="[NAME]...")] = None,
) -> None:
    """New certificates for the keys there are. Nothing secret travels: a site puts the new one into its kit, beside its key."""
    from coterie.deploy.certificates import renew
    from coterie.deploy.federation import FederationFolder

    federation = FederationFolder.open(folder)
    for name, path, ends in renew(federation, names or ()):
        use = (
            f"send {path} to {name}, for startup/ of its kit; it joins anew" if name in federation.sites else "used from its next start on"
        )
        print(f"{name}: valid until {ends:%Y-%m-%d}; {use}.")


@app.command("stop")
def stop_run(folder: Folder, run: Annotated[str, typer.Argument(help="The run's name.", metavar="RUN")]) -> None:
    """Stop a run. Its rounds so far are kept: 'coterie launch --resume --name RUN' goes on."""
    from coterie.core.errors import UserError
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.runs import ENDS, known_run

    found = known_run(FederationFolder.open(folder), run)
    if found.status in ENDS:
        raise UserError(f"The run {run!r} has ended already ({found.status}).")
    found.want_stop()
    print(f"The server stops {run} in a moment.")


@app.command("status")
def status(folder: Folder, as_json: options.AsJson = False) -> None:
    """Who is there, which runs there are, how far they are, and which group each client is in."""
    from coterie.cli.console import PlainConsole
    from coterie.cli.standing import print_standing
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.overview import overview

    found = overview(FederationFolder.open(folder))
    print_standing(found, PlainConsole(stderr=as_json))
    if as_json:
        print(json.dumps(found))
