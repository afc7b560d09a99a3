"""`coterie policy`: what may leave a site, said by its policy file."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="What a site answers and what may leave it.", no_args_is_help=True)
Kit = Annotated[Path, typer.Argument(help="The site's kit folder, or its policy file.", metavar="KIT")]


@app.command("explain")
def explain_policy(
    kit: Kit,
    model: Annotated[str | None, typer.Option(help="Say how many numbers this model has.")] = None,
    features: Annotated[int, typer.Option(help="Features of a sample, for --model.")] = 64,
    classes: Annotated[int, typer.Option(help="Classes, for --model.")] = 10,
) -> None:
    """Say in words what may leave this site, what is guaranteed and spent, and what is refused."""
    from coterie.deploy.explain import explain
    from coterie.deploy.files import kit_files
    from coterie.deploy.ledger import Ledger
    from coterie.deploy.policy import read_policy

    files = kit_files(kit)
    numbers = {} if model is None else {"numbers": _numbers(model, features, classes)}
    print(f"The policy {files.policy}")
    for part in explain(read_policy(files.policy), Ledger(files.ledger), **numbers):
        print(f"\n{part.heading}")
        for line in part.lines:
            print(f"  {line}")


@app.command("check")
def check_policy(file: Annotated[Path, typer.Argument(help="A policy file.")]) -> None:
    """Check that a policy file can be read."""
    from coterie.deploy.files import kit_files
    from coterie.deploy.policy import read_policy

    path = kit_files(file).policy
    policy = read_policy(path)
    print(f"{path} is a policy: it answers {', '.join(policy.asks) or 'nothing'}; privacy: {policy.privacy.mechanism}.")


@app.command("default")
def default_policy() -> None:
    """Print the policy file to begin with."""
    from coterie.deploy.default_policy import DEFAULT_POLICY

    print(DEFAULT_POLICY, end="")


@app.command("audit")
def audit_log(
    kit: Kit,
    last: Annotated[str | None, typer.Option(help="A hash that was noted earlier: it must still be in the log.")] = None,
) -> None:
    """Check that no line of the site's log was changed or taken out."""
    from coterie.deploy.audit import verify_audit
    from coterie.deploy.files import kit_files

    found = verify_audit(kit if kit.suffix == ".jsonl" else kit_files(kit).audit, last)
    for fault in found.faults:
        print(fault)
    print(f"{found.lines} lines, {len(found.faults)} faults; the last hash is {found.last}.")
    if found.faults:
        raise typer.Exit(1)


def _numbers(model: str, features: int, classes: int) -> str:
    from coterie.core.model import ModelSpec
    from coterie.models.catalogue import build_model

    size = ModelSpec(model, (features,), classes, build_model).layout.size
    return f"{size:,} numbers for {model} on {features} features and {classes} classes"
