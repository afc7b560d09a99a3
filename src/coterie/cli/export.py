"""`coterie export`: the models of a finished study as bundles, one for each site."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from coterie._util.errors import UserError, check_names
from coterie._util.progress import track
from coterie.cli import options
from coterie.cli.terminal import run_with_trust


def export(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' or 'coterie compare --out' made.")],
    out: Annotated[Path, typer.Option(help="Folder for the bundle; with --all, one folder in it for each client.")],
    method: Annotated[str | None, typer.Option(help="The method whose models to export. Default: the recommended one.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed. Default: the study's first.")] = None,
    data_seed: Annotated[int | None, typer.Option(help="The draw of the data. Default: the study's first.")] = None,
    client: Annotated[list[str] | None, typer.Option(help="A client, took part or not; repeated, one bundle for several.")] = None,
    newcomers: Annotated[str | None, typer.Option(help="Data of clients that are new to the study, as for --data: by cold start.")] = None,
    all_clients: Annotated[bool, typer.Option("--all", help="A bundle for each client of the federation, or each newcomer.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, for bundles with one model.")] = False,
    peft: Annotated[bool, typer.Option("--peft", help="Also write adapter/, which peft loads onto the same language model.")] = False,
    hub: Annotated[bool, typer.Option("--hub", help="Also write what a model hub reads: card, tensors by name, configuration.")] = False,
    data_dir: options.DataDir = None,
    trust: options.Trust = False,
) -> None:
    """Write the models that clients are served, one bundle each.

    They are those of the end of a study, and usable without study or server.
    """
    from coterie.cli.console import PlainConsole
    from coterie.data.catalogue import load
    from coterie.deploy.bundle import export as bundles
    from coterie.deploy.bundle.files import write_bundle
    from coterie.deploy.bundle.hub import check_card, write_hub_files
    from coterie.deploy.dossier.dossier import make_model_card
    from coterie.deploy.files import keep_private
    from coterie.run.callbacks import StepsBar

    if bool(client) == all_clients and newcomers is None:
        raise UserError("Specify a client: --client NAME, or --all for one each.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: choose another --out.")
    if onnx:
        bundles.check_onnx()
    chosen = bundles.find_recommendation(folder, method)
    new = load(newcomers, data_seed or 0, data_dir) if newcomers is not None else None
    found = run_with_trust(
        lambda trusted: bundles.load_served_models(
            folder, method, seed=seed, draw=data_seed, data_dir=data_dir, newcomers=new, trust=trusted
        ),
        trust,
    )
    names = client or list(new.ids if new is not None else found.federation.ids)
    if new is not None:
        check_names(names, new.ids, "newcomer")
    wanted = {out / make_folder_name(name): [name] for name in names} if all_clients else {out: names}
    console, key = PlainConsole(), found.lane.key
    card = ""
    if hub:
        card = make_model_card(folder, key.method)
        check_card(card)
    with StepsBar(console):
        for place, own in track(list(wanted.items()), "writing bundles"):
            bundle = found.bundle(own)
            if onnx:
                bundles.check_onnx(bundle)
            if peft:
                bundles.check_adapter(bundle)
            write_bundle(bundle, place)
            if onnx:
                bundles.write_onnx(bundle, place / bundles.ONNX_FILE)
            if peft:
                bundles.write_adapter(bundle, place / bundles.ADAPTER_FOLDER)
            if hub:
                write_hub_files(bundle, place, card)
            keep_private(place)
    what = f"{len(wanted)} bundles" if all_clients else f"The bundle of {', '.join(bundle.clients)} ({', '.join(bundle.names)})"
    console.print(f"{what} in {out}: {key.method}, seed {key.seed}, round {found.lane.round_}.", soft_wrap=True)
    if chosen is not None:
        console.print(str(chosen), soft_wrap=True)
    if hub:
        console.print("README.md lists every client's id and scores: read it before you upload the folder.", soft_wrap=True)
    console.print(f"Use it: coterie predict {next(iter(wanted))} --data FILE", soft_wrap=True)


def make_folder_name(client: str) -> str:
    """A client's id as the name of a folder, whatever signs are in it."""
    name = quote(client, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name
