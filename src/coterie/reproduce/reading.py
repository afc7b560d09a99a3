"""Reading a study file: its keys, every part's settings, and that its claims are about something."""

import tomllib
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from coterie.core.errors import UserError, first_repeated, suggestion
from coterie.reproduce.file import Claim, Reproduction, ReproductionFile

LONGEST = 200  # bytes of a part's name, which is a folder's


def read_reproduction(path: Path) -> Reproduction:
    """A file, checked: its keys, every part's settings, and that claims name parts that exist."""
    try:
        tree = tomllib.loads(path.read_text())
        ReproductionFile.model_validate(tree)
        found = Reproduction.model_validate({**tree, "name": path.stem, "path": path})
    except OSError as error:
        raise UserError(f"Cannot read the study file {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        raise UserError(_fault(path, error)) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    for part in found.parts:
        found.settings_of(part)
    names = [part.name for part in found.parts]
    for name in names:
        _check_folder_name(path, name)
    if (twice := first_repeated(names)) is not None:
        raise UserError(f"The study file {path} has two parts called {twice!r}: each has a folder of its own.")
    for part in found.parts:
        if part.instead and (part.instead == part.name or part.instead not in names):
            raise UserError(
                f"The study file {path} has {part.instead!r} instead of the part {part.name!r}: {suggestion(part.instead, names)}"
            )
    for claim in found.claims:
        for name in claim.parts or [claim.part]:
            if name not in names:
                raise UserError(f"The study file {path} has a claim about the part {name!r}: {suggestion(name, names)}")
        if claim.kind in ("level", "at_least", "at_most", "rounds") and claim.paper is None:
            raise UserError(f"The study file {path} has the claim {claim.says!r} of kind {claim.kind} without a number: add 'paper'.")
        _check_trend(path, claim)
    for curves in found.curves:
        if curves.part not in names:
            raise UserError(f"The study file {path} has curves for the part {curves.part!r}: {suggestion(curves.part, names)}")
    said = [claim.says for claim in found.claims]
    if (twice := first_repeated(said)) is not None:
        raise UserError(f"The study file {path} has two claims that say {twice!r}: word them apart.")
    return found


def _fault(path: Path, error: ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing" and key.split(".")[0] in ("protocol", "deviations"):
        return f"The study file {path} lacks {key!r}: write what the paper says of it, and in which section, or that it does not say."
    return f"The study file {path}: {key!r} is wrong ({fault['msg'].removeprefix('Value error, ').lower()})."


def _check_trend(path: Path, claim: Claim) -> None:
    if claim.kind == "trend" and len(claim.parts) < 2:
        raise UserError(f"The study file {path} has the trend {claim.says!r} over fewer than two parts: name them in 'parts'.")
    if claim.at and (len(claim.at) != len(claim.parts) or any(a >= b for a, b in pairwise(claim.at))):
        raise UserError(
            f"The study file {path} has the claim {claim.says!r} with 'at' that is not one rising number for each of its parts."
        )


def _check_folder_name(path: Path, name: str) -> None:
    """A part's evidence lies in a folder of its name: it must be a name and no way to somewhere else."""
    if (
        not name.strip()
        or name.startswith(".")
        or len(name.encode()) > LONGEST
        or not all(c.isprintable() and c not in "/\\" for c in name)
    ):
        raise UserError(
            f"The study file {path} has a part that cannot be called {name!r}: use letters, digits and blanks, without a dot in front."
        )
