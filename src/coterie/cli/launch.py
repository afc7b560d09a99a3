"""`coterie launch`: a study on the sites of a real federation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie.cli import options
from coterie.cli.terminal import run_with_trust, stop_on_terminate
from coterie.core.local import Local
from coterie.core.mixing import get_default_share
from coterie.core.plan import Plan

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.runs import RunFolder
    from coterie.evidence.settings import Settings

DATA_NAME = "sites"  # the default name of the data: every site names its own


@options.add_settings(Plan, Local)
def launch(
    federation: Annotated[Path, typer.Option(help="The folder that 'coterie federation init' made.")],
    given: dict[str, Any],
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods such as 'fedavg' or your own 'package.module:Method', or one study file (.toml).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="What to call the data in the record; every site brings its own.")] = None,
    model: options.Model = None,
    seeds: options.Seeds = None,
    name: Annotated[str | None, typer.Option(help="The run's name. Default: the study file's, or 'run'.")] = None,
    minimum: Annotated[int | None, typer.Option(help="Sites needed to start. Default: all of the federation.", min=1)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a site has to answer.", min=1)] = 600.0,
    purpose: Annotated[str, typer.Option(help="What the run is for: sites read it before they approve the order.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run --name, with more --rounds if given, or show it again.")] = False,
    evaluate: Annotated[Path | None, typer.Option(help="A bundle's folder: ask for its scores at all sites, and train nothing.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="A bundle's folder: training continues from its models.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Run methods on the connected sites.

    The rounds are those of 'coterie run', with clients at the sites.
    """
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.federation import FederationFolder, require_server
    from coterie.evidence.settings import parse_seeds

    stop_on_terminate()
    folder, console = FederationFolder.open(federation), PlainConsole(stderr=as_json)
    given |= options.drop_unset(data=data, model=model, seeds=parse_seeds(seeds) if seeds is not None else None)
    require_server(federation, folder.server)
    if evaluate is not None:
        _evaluate_bundle(folder, evaluate, name, methods or [], given, minimum, timeout, purpose, console, as_json=as_json, detach=detach)
        return
    if start is not None:
        if resume:
            raise UserError("--resume continues a run from its own models: omit --from.")
        given = _use_model_of(folder, start, given)
    if resume:
        runs = [_resume_run(folder, name, methods or [], given, trust)]
    else:
        wanted = _read_studies(folder, methods or [], given, name, trust)
        runs = [_place_order(folder, run, settings, minimum, timeout, purpose, start) for run, settings in wanted]
    for run, seen in runs:
        if detach:
            state = f"is ordered. {_describe_next_commands(folder, run)}" if run.status != "complete" else "is complete already."
            console.print(f"Run {run.name} {state}", soft_wrap=True)
        else:
            _wait_for_result(folder, run, seen, console, as_json)


def _read_studies(
    folder: "FederationFolder", methods: list[str], given: dict[str, Any], name: str | None, trust: bool
) -> list[tuple[str, "Settings"]]:
    """The settings of each study, with the name of its run."""
    from coterie.deploy.server.runs import find_free_name
    from coterie.evidence.settings import Settings
    from coterie.methods.catalogue import build, expand_sets
    from coterie.run.async_rounds import check_async_methods
    from coterie.run.execution import Execution
    from coterie.run.study_file import FileStudy, find_study_path, read_study_file

    if not methods:
        raise UserError("Name methods, such as fedavg, or a study file; or resume a run: --resume --name RUN.")
    if (path := find_study_path(methods)) is not None:
        other = {"other_model": "model" in given, "other_ray": True}  # sites run it, no cluster
        entries, stem = run_with_trust(lambda trusted: read_study_file(path, trust=trusted, **other), trust), path.stem
    else:
        named, optional = expand_sets(methods)
        entries, stem = [FileStudy("", Settings(methods=tuple(named), data=DATA_NAME), Execution(), None, optional=optional)], "run"
    found = [(entry.name, set_default_share(entry.override(given).settings, len(folder.sites))) for entry in entries]
    for _, settings in found:
        settings.plan.check_real()
        made = [build(spec, trust=True) for spec in settings.methods]  # typed by the operator, or in a file that is trusted
        check_async_methods(settings.plan, settings.methods, made)
    if len(found) == 1:
        return [(name or find_free_name(folder, stem), found[0][1])]
    return [(f"{name or stem}-{point}", settings) for point, settings in found]


def set_default_share(settings: "Settings", sites: int) -> "Settings":
    """The settings with a bound on a site's share: that of a federation of so many sites, if none is set."""
    if settings.plan.most_share is not None:
        return settings
    return replace(settings, plan=replace(settings.plan, most_share=get_default_share(sites)))


def _place_order(
    folder: "FederationFolder",
    name: str,
    settings: "Settings",
    minimum: int | None,
    timeout: float,
    purpose: str,
    start: Path | None = None,
) -> "tuple[RunFolder, int]":
    from coterie.core.specs import is_external_code
    from coterie.data.agreed_schema import read_agreed_schema
    from coterie.deploy.server.federation import AGREED_FILE
    from coterie.deploy.server.preparation import check_preparation, list_preparations
    from coterie.deploy.server.runs import Order, get_operator_name, make_run

    needed, run, begin = check_minimum(folder, minimum), make_run(folder, name), ""
    agreed = folder.folder / AGREED_FILE
    prepares = list_preparations(read_agreed_schema(agreed)) if agreed.exists() else ()
    if start is not None:
        from coterie.deploy.server.evaluation import keep_bundle, open_bundle

        bundle, begin = open_bundle(start)
        check_preparation(bundle.schema, agreed)
        prepares = tuple(name for name in prepares if name != "SummarizeTable")  # sites are prepared as those of the bundle were
        keep_bundle(start, run.folder)
    trusted = tuple(spec for spec in (*settings.methods, settings.plan.selection) if is_external_code(spec))
    common: dict[str, Any] = {"operator": get_operator_name(), "purpose": purpose, "start": begin, "prepares": prepares}
    order = Order(name, "study", settings.as_json(), folder.sites, needed, trusted=trusted, **common)
    run.place(order, timeout)
    return run, 0


def check_minimum(folder: "FederationFolder", minimum: int | None) -> int:
    """The sites that are needed: all of the federation, if no number is given."""
    if minimum is not None and minimum > len(folder.sites):
        raise UserError(f"--minimum {minimum} is more than the {len(folder.sites)} sites of the federation: use fewer.")
    return minimum or len(folder.sites)


def _use_model_of(folder: "FederationFolder", start: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings with the model of a bundle, which no other may replace."""
    from coterie.deploy.server.evaluation import check_columns, open_bundle

    bundle, _ = open_bundle(start)
    check_columns(bundle, folder)
    if given.get("model", bundle.model) != bundle.model:
        raise UserError(f"{start} is a bundle of {bundle.model}, and --model is {given['model']}: omit --model, or name another bundle.")
    return {**given, "model": bundle.model}


def _evaluate_bundle(
    folder: "FederationFolder",
    bundle: Path,
    name: str | None,
    methods: list[str],
    given: dict[str, Any],
    minimum: int | None,
    timeout: float,
    purpose: str,
    console: "PlainConsole",
    *,
    as_json: bool,
    detach: bool,
) -> None:
    """Order one look at a bundle, and print its scores."""
    from coterie.cli.federation_monitor import await_look, place_evaluation, print_look
    from coterie.deploy.server.evaluation import History
    from coterie.deploy.server.runs import find_free_name

    if methods or given:
        other = ", ".join([*methods, *(f"--{option.replace('_', '-')}" for option in given)])
        raise UserError(f"--evaluate trains nothing: omit {other}.")
    needed = check_minimum(folder, minimum)
    run = place_evaluation(folder, bundle, name or find_free_name(folder, "evaluate"), needed, timeout, purpose)
    if detach:
        console.print(f"Run {run.name} is ordered: coterie federation status {folder.folder} shows it.", soft_wrap=True)
        return
    await_look(folder, run, console)
    look = History(run.folder).read()[-1]
    print_look(look, console)
    console.print(f"Scores in {History(run.folder).path}.", soft_wrap=True)
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(look)))


def _resume_run(
    folder: "FederationFolder", name: str | None, methods: list[str], given: dict[str, Any], trust: bool
) -> "tuple[RunFolder, int]":
    """The run to resume, and the number of journal lines that were printed before."""
    from coterie.deploy.server.runs import END_STATES, WAITING, find_run, read_journal
    from coterie.evidence.settings import Settings
    from coterie.run.execution import Execution
    from coterie.run.study_file import FileStudy

    if name is None:
        raise UserError("--resume needs --name: name the run to resume.")
    run = find_run(folder, name)
    status, (order, timeout) = run.status, run.order()
    if (methods or given) and order.kind == "study":
        stored = Settings.from_json(order.settings)
        share = {} if stored.plan.most_share is None else {"most_share": stored.plan.most_share}  # sites may have been added since
        if methods:
            wanted = _read_studies(folder, methods, share | given, name, trust)[0][1]
        else:
            wanted = FileStudy("", stored, Execution(), None).override(given).settings
        more = replace(stored, plan=replace(stored.plan, rounds=max(stored.plan.rounds, wanted.plan.rounds)))
        if wanted != more:
            differ = ", ".join(stored.differences(wanted))
            raise UserError(f"The run {name!r} is another study (it differs in {differ}): choose another --name, or omit the study.")
        if more != stored:
            if status not in END_STATES:
                raise UserError(f"The run {name!r} has not ended: stop it with 'coterie federation stop' before it gets more rounds.")
            seen = len(read_journal(run.folder))
            run.place(replace(order, settings=more.as_json()), timeout)  # a new order: every site approves it again
            return run, seen
    if status in END_STATES and status != "complete":
        run.set_status(WAITING)
    return run, 0 if status not in END_STATES else len(read_journal(run.folder))


def _wait_for_result(folder: "FederationFolder", run: "RunFolder", seen: int, console: "PlainConsole", as_json: bool) -> None:
    from coterie._util.json_io import read_json
    from coterie.cli.console import make_bold
    from coterie.cli.federation_status import follow_run
    from coterie.cli.tables import print_result
    from coterie.deploy.server.runner import BUNDLES_FOLDER, UNDELIVERED_FILE
    from coterie.evidence.reader import Evidence
    from coterie.run.result import Result

    console.print("Run", make_bold(run.name))
    try:
        status = follow_run(folder, run, console, seen)
    except KeyboardInterrupt:
        console.print(f"The run continues. {_describe_next_commands(folder, run)}", soft_wrap=True)
        raise typer.Exit(130) from None
    if status != "complete":
        reason = run.status_details.get("reason", "no reason is known")
        raise UserError(f"The run {run.name} was not completed ({status}): {reason}")
    result = Result(Evidence.open(run.study))
    print_result(result, console)
    console.print(f"Evidence in {run.study}: coterie show {run.study}, coterie report {run.study}.", soft_wrap=True)
    without = read_json(run.folder / UNDELIVERED_FILE)
    missing = f"; not {', '.join(without)}" if without else ""
    console.print(f"Sites have their models in their own kits, in bundles/{run.name}{missing}.", soft_wrap=True)
    console.print(
        f"What all clients are served: {run.folder / BUNDLES_FOLDER}, for --evaluate, --from and 'federation monitor'.", soft_wrap=True
    )
    if as_json:
        print(json.dumps(result.as_json(str(run.study))))


def _describe_next_commands(folder: "FederationFolder", run: "RunFolder") -> str:
    root = folder.folder
    return (
        f"Show it again: coterie launch --federation {root} --resume --name {run.name}; stop it: coterie federation stop {root} {run.name}."
    )
