"""`coterie auto`: from data to a bundle with one command: inspect, train `auto` beside simple ways, report, export."""

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie.cli import options
from coterie.cli.terminal import stop_on_terminate
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.run.execution import LOCAL_SETTINGS, PLAN_SETTINGS, Execution, override_execution

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole

NOTE_FILE = "README.md"  # beside the model: what it is, and why
NOTE = """\
# The model of {client}

{client} is served {words} (`{option}`), chosen by `coterie auto` on {data}.

{decided}
"""
BESIDE = ("fedavg", "fedavg+finetune(epochs=5)", "local")  # what it has to be better than


@options.add_settings(Plan, Local, Execution)
def auto(
    given: dict[str, Any],
    data: Annotated[str, typer.Option(help="The federation, such as heart or 'csv(sites/,label=ill)'.")] = "heart",
    out: Annotated[Path, typer.Option(help="Folder for inspection, evidence, report and bundles.")] = Path("runs/auto"),
    model: options.Model = None,
    draws: Annotated[int | None, typer.Option(help="Draws of the data. Default: 5 where they can be redrawn.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of every draw: 0-4 or 0,2. Default: 0, of one draw 0-4.")] = None,
    data_seed: options.DataSeed = None,
    data_dir: options.DataDir = None,
    budget: Annotated[float, typer.Option(help="The most client steps of auto, in those of FedAvg.")] = 4.0,
    inspection: Annotated[bool, typer.Option("--inspect/--no-inspect", help="Whether to inspect the data first.")] = True,
    accept: options.Accept = False,
    details: options.Details = False,
    as_json: options.AsJson = False,
) -> None:
    """Choose, train, report and export each client's model.

    Inspects the data, runs auto with FedAvg, fine-tuning and training alone beside it, writes the report, and exports a bundle for each
    client. Started again in the same folder, it continues where it was stopped.
    """
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.cli.inspect import inspect_into
    from coterie.cli.tables import print_comparison
    from coterie.evidence.settings import parse_seeds
    from coterie.report import write_report
    from coterie.run.callbacks import ProgressBar, StepsBar
    from coterie.run.compare import compare

    stop_on_terminate()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: choose another --out.")
    console, study = PlainConsole(stderr=as_json), out / "study"
    known = options.drop_unset(model=model, data_seed=data_seed)
    if inspection and not (out / "inspection.json").is_file():
        inspect_into(data, out, console, data_dir=data_dir, execution=override_execution(given), **known)
    method = "auto" if budget == 4.0 else f"auto(budget={budget:g})"
    comparison = compare(
        [*BESIDE, method],
        data=data,
        out=study,
        draws=5 if draws is None and seeds is None else draws,
        seeds=parse_seeds(seeds) if seeds is not None else None,
        execution=override_execution(given),
        resume=True,
        data_dir=data_dir,
        callbacks=[ProgressBar(console)],
        controls=False,
        accept=accept,
        **{name: value for name, value in given.items() if name in (*PLAN_SETTINGS, *LOCAL_SETTINGS)},
        **known,
    )
    print_comparison(comparison, console, details=details)
    with StepsBar(console):
        page = write_report(study).page
    first = _export_bundles(study, method, out / "bundles", data_dir, console)
    console.print(f"\nReport: {page}\nBundles: {out / 'bundles'}, one for each client.", soft_wrap=True)
    console.print("Use one:", make_bold(f"coterie predict {shlex.quote(str(first))} --data FILE"), soft_wrap=True)
    if as_json:
        print(json.dumps({"folder": str(out), "report": str(page), "bundles": str(out / "bundles"), **comparison.as_json()}))


def _export_bundles(study: Path, method: str, out: Path, data_dir: Path | None, console: "PlainConsole") -> Path:
    """A bundle for each client, of the first draw and seed; those that are there already are replaced, so that all are of one study."""
    from coterie._util.progress import track
    from coterie.analysis.auto_decisions import describe_decision, explain_option, read_decisions
    from coterie.cli.export import make_folder_name
    from coterie.deploy.bundle.export import find_study, load_served_models
    from coterie.deploy.bundle.files import write_bundle
    from coterie.deploy.files import keep_private
    from coterie.evidence.reader import Evidence
    from coterie.methods.auto import Auto, AutoState
    from coterie.run.callbacks import StepsBar

    found = load_served_models(study, method, data_dir=data_dir)
    names = list(found.federation.ids)
    chooser, state, key = found.lane.method, found.lane.state, found.lane.key
    assert isinstance(chooser, Auto)
    assert isinstance(state, AutoState)
    decisions = [own for own in read_decisions(Evidence.open(find_study(study))) if (own.draw, own.method, own.seed) == key]
    decided = describe_decision(decisions[0]) if decisions else "There was nothing to decide."
    draft = out.with_name(f"{out.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    with StepsBar(console):
        for number, name in enumerate(track(names, "writing bundles")):
            write_bundle(found.bundle([name]), draft / make_folder_name(name))
            option = chooser.get_option(state, number)
            words = explain_option(option).replace("their", "its")
            text = NOTE.format(client=name, words=words, option=option, decided=decided, data=found.federation.name)
            (draft / make_folder_name(name) / NOTE_FILE).write_text(text, encoding="utf-8")
            keep_private(draft / make_folder_name(name))
    shutil.rmtree(out, ignore_errors=True)
    draft.rename(out)
    return out / make_folder_name(names[0])
