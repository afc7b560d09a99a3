"""A site's policy: a TOML file that the site owns, and that no message of the server can change."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from coterie.core.arrays import Ints
from coterie.core.errors import UserError, suggestion
from coterie.core.specs import parse
from coterie.deploy.denied import Denied
from coterie.deploy.mechanisms import MECHANISMS, Mechanism, NoPrivacy, PolicyTable
from coterie.deploy.orders import Approve

if TYPE_CHECKING:
    from coterie.engines.engine import Stamped
    from coterie.engines.world import World

AskName = Literal["Train", "Gradient", "Losses", "Error", "Evaluate", "SketchedTrain", "SketchedGradient"]
ASKS: tuple[AskName, ...] = ("Train", "Gradient", "Losses", "Error", "Evaluate")
SKETCHED: tuple[AskName, ...] = ("SketchedTrain", "SketchedGradient")  # answered, too, where the whole is
# Coterie's own; listed here so that reading a policy needs no torch
BUILT_MODELS = ("cnn", "densenet121", "lstm", "mclr", "mlp", "resnet18", "resnet50", "rnn")
# These read a file or folder of the site, or the hub, that the server names: not unless the site says so.
READING_MODELS = ("efficientnet_lite0", "fusion", "lm", "text")
OWN_MODELS = tuple(sorted((*BUILT_MODELS, *READING_MODELS)))
OWN_RULES = ("Beside", "Contrast")  # Ditto's and MOON's

Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


class Policy(PolicyTable):
    """What a site answers and what may leave it. Whatever a file does not say is as here."""

    asks: Annotated[tuple[AskName, ...], Field(strict=False)] = ASKS
    models: Names = BUILT_MODELS  # by name; somebody's own as package.module:Class
    rules: Names = OWN_RULES  # local rules, likewise
    maximum_rounds: Annotated[int, Field(ge=0)] = 1000
    minimum_samples: Annotated[int, Field(ge=1)] = 1  # a client that would answer from fewer is silent
    message_megabytes: Annotated[float, Field(gt=0)] = 256.0  # of one ask or one reply
    sample_counts: bool = True  # whether the server learns how many samples a client has
    class_counts: bool = True  # whether it learns of evaluations class by class
    sketch_numbers: Annotated[int, Field(ge=1)] = 256  # directions that a run's sketches may show, where the whole may not leave
    label_shares: bool = False  # whether it may ask about the samples of one class
    error_messages: bool = True  # whether it is told the text of an error, which may quote a value
    privacy: Mechanism = NoPrivacy()
    approve: Approve = Approve()  # orders that are answered without asking the site's operator

    def permitted(self, stamped: "Stamped", world: "World") -> Denied | None:
        """Why an ask is not answered; None where it is."""
        from coterie.deploy.permission import permission

        return permission(self, stamped, world)

    def model_permitted(self, spec: str) -> Denied | None:
        """The same of a model, by its spec: to be asked before it is built, for building it imports and runs its code."""
        name = parse(spec).name
        if name in self.models:
            return None
        return Denied(f"The model {name!r} may not run here: the site's policy names {', '.join(self.models) or 'none'}.")

    def told_sizes(self, sizes: Ints) -> Ints:
        """Sample counts as the server may know them: all one where they are not told."""
        return sizes if self.sample_counts else sizes.clip(0, 1)

    @property
    def tells_errors(self) -> bool:
        """Under a privacy mechanism never: the text of an error would leave without noise."""
        return self.error_messages and isinstance(self.privacy, NoPrivacy)


def read_policy(path: Path) -> Policy:
    """The policy in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no policy file {path}: write one with 'coterie policy default > {path}'.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the policy file {path}: {getattr(error, 'strerror', None) or error}.") from error
    return policy_of(text, str(path))


def policy_of(text: str, name: str = "policy") -> Policy:
    """The policy that a text says; `name` is the file's, for errors."""
    try:
        made = Policy.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise UserError(f"The policy file {name} {_sentence(error.errors()[0])}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The policy file {name} is not valid TOML: {error}.") from error
    for what, given, own in (("models", made.models, OWN_MODELS), ("rules", made.rules, OWN_RULES)):
        for each in given:
            if ":" not in each and each not in own:
                raise UserError(
                    f"The policy file {name} names {each!r} in {what!r}, which is unknown: {suggestion(each, own)} "
                    "(one of your own is written package.module:Class)"
                )
    if made.class_counts and not made.sample_counts:
        raise UserError(
            f"The policy file {name} tells counts by class but not their sum: set 'class_counts' to false, or 'sample_counts' to true."
        )
    if made.approve.any and made.approve != Approve(any=True):
        raise UserError(
            f"The policy file {name} approves any order and limits which: leave 'approve.any' out, or the other keys of [approve]."
        )
    return made


def _sentence(fault: Any) -> str:
    """One fault of a file in words: the key, what is wrong with it, what to do."""
    place = [str(part) for part in fault["loc"] if part not in MECHANISMS]
    key = ".".join(place)
    if fault["type"] == "extra_forbidden":
        return f"has an unknown key {key!r}: {suggestion(place[-1], _known(fault['loc']))}"
    if fault["type"] == "missing":
        return f"lacks the key {key!r}: add it."
    if fault["type"].startswith("union_tag"):
        return f"has no known 'privacy.mechanism': {suggestion(str((fault.get('ctx') or {}).get('tag', '')), MECHANISMS)}"
    return f"has a wrong {key!r} ({fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r}): correct it."


def _known(place: tuple[Any, ...]) -> list[str]:
    if len(place) > 1 and place[0] == "approve":
        return list(Approve.model_fields)
    table = MECHANISMS[place[1]] if len(place) > 2 and place[0] == "privacy" else Policy
    return list(table.model_fields)
