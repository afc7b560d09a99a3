"""A site's policy: a TOML file that the site owns, and that no message of the server can change."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from coterie.core.arrays import Ints
from coterie.core.errors import UserError, suggestion
from coterie.core.specs import Spec, parse
from coterie.deploy.denied import Denied
from coterie.deploy.mechanisms import MECHANISMS, ClipNoise, DpSgd, Mechanism, NoPrivacy, PolicyTable
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
# Words that are choices of a model's own, by its setting: no other text of a spec is read as anything but a name in `model_files`.
_IMAGE: dict[str, tuple[str, ...]] = {"stem": ("cifar", "imagenet"), "norm": ("batch", "group")}
_TRAINED: dict[str, tuple[str, ...]] = {"train": ("head", "lora", "all")}
MODEL_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "cnn": {"variant": ("mcmahan", "fedsim", "fedsim_table")},
    "resnet18": _IMAGE,
    "resnet50": _IMAGE,
    "densenet121": _IMAGE,
    "efficientnet_lite0": {"stem": _IMAGE["stem"], "train": ("head", "all")},
    "text": {**_TRAINED, "pool": ("mean", "first")},
    "lm": _TRAINED,
    "fusion": _TRAINED,
}
POSITIONS: dict[str, tuple[str, ...]] = {  # the settings of those models, in the order in which they may stand without a name
    "cnn": ("variant",),
    "resnet18": ("stem", "norm"),
    "resnet50": ("stem", "norm"),
    "densenet121": ("stem", "norm"),
    "efficientnet_lite0": ("stem", "weights", "train"),
    "text": ("encoder", "head", "train", "pool"),
    "lm": ("folder", "train"),
    "fusion": ("text", "image", "train"),
}
SPEC_LENGTH = 1000  # characters of a model's spec
SHOWN = 40  # of a word in it

Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


class Policy(PolicyTable):
    """What a site answers and what may leave it. Whatever a file does not say is as here."""

    asks: Annotated[tuple[AskName, ...], Field(strict=False)] = ASKS
    models: Names = BUILT_MODELS  # by name; somebody's own as package.module:Class
    rules: Names = OWN_RULES  # local rules, likewise
    maximum_rounds: Annotated[int, Field(ge=0)] = 1000
    maximum_epochs: Annotated[int, Field(ge=1)] = 1000  # of one ask
    maximum_steps: Annotated[int, Field(ge=1)] = 100_000  # of one client, in one ask
    asks_per_run: Annotated[int, Field(ge=0)] = 100_000
    models_per_run: Annotated[int, Field(ge=0)] = 50_000  # on which one client is evaluated: Losses, Error, Evaluate
    models_in_all: Annotated[int, Field(ge=0)] = 500_000  # the same over all runs on a client's data
    minimum_samples: Annotated[int, Field(ge=1)] = 10  # a client that would answer from fewer is silent
    message_megabytes: Annotated[float, Field(gt=0)] = 256.0  # of one ask or one reply
    rounding: Annotated[int, Field(ge=1)] = 3  # samples that losses and counts of evaluations are rounded to; 1: exact
    sample_counts: bool = True  # whether the server learns how many samples a client has
    class_counts: bool = True  # whether it learns of evaluations class by class
    sketch_numbers: Annotated[int, Field(ge=1)] = 256  # directions that all sketches together may show, where the whole may not leave
    label_shares: bool = False  # whether it may ask about the samples of one class
    error_messages: bool = True  # whether it is told the text of an error, which may quote a value
    model_files: dict[str, str] = Field(default_factory=dict)  # what a model's spec may name, and the file, folder or hub model meant
    privacy: Mechanism = NoPrivacy()
    approve: Approve = Approve()  # orders that are answered without asking the site's operator

    def permitted(self, stamped: "Stamped", world: "World") -> Denied | None:
        """Why an ask is not answered; None where it is."""
        from coterie.deploy.permission import permission

        return permission(self, stamped, world)

    def model_permitted(self, spec: str) -> Denied | None:
        """The same of a model, by its spec: to be asked before it is built, for building it imports and runs its code."""
        if len(spec) > SPEC_LENGTH:
            return Denied(f"A model of {len(spec):,} characters is not built here: at most {SPEC_LENGTH:,} are read.")
        try:
            parsed = parse(spec)
        except UserError:
            return Denied("The model's spec cannot be read.")
        if (denied := self.name_permitted(spec)) is not None:
            return denied
        for place, value in _words_of(parsed):
            if value not in self.model_files and value not in MODEL_WORDS.get(parsed.name, {}).get(place, ()):
                return Denied(
                    f"The model {parsed.name!r} may not name {value[:SHOWN]!r} here: a server names no file, folder, module or address; "
                    "the site lists what a model may use in its policy ('model_files')."
                )
        return None

    def name_permitted(self, spec: str) -> Denied | None:
        """Why a model may not run, whatever its settings; None where it may."""
        name = parse(spec).name
        if name in self.models:
            return None
        return Denied(f"The model {name!r} may not run here: the site's policy names {', '.join(self.models) or 'none'}.")

    def local_model(self, spec: str) -> str:
        """A permitted model's spec with the site's own files in place of the names that the server uses for them."""
        parsed = parse(spec)
        if not any(value in self.model_files for _, value in _words_of(parsed)):
            return spec

        def own(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(own(item) for item in value)
            return self.model_files.get(value, value) if isinstance(value, str) else value

        return str(replace(parsed, args=own(parsed.args), kwargs={name: own(value) for name, value in parsed.kwargs.items()}))

    def told_sizes(self, sizes: Ints) -> Ints:
        """Sample counts as the server may know them: all one where they are not told."""
        return sizes if self.tells_sizes else sizes.clip(0, 1)

    @property
    def tells_sizes(self) -> bool:
        """Under clip+noise never: how many samples a client has is part of what is protected."""
        return self.sample_counts and not isinstance(self.privacy, ClipNoise)

    @property
    def tells_classes(self) -> bool:
        """Whether counts by class leave; noise is added to their sum alone."""
        return self.class_counts and self.tells_sizes and not self.protects_tests

    @property
    def protects_tests(self) -> bool:
        """Whether a mechanism covers evaluations of test parts."""
        return isinstance(self.privacy, ClipNoise) or (isinstance(self.privacy, DpSgd) and self.privacy.protect_tests)

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


def _words_of(spec: Spec) -> Iterator[tuple[str, str]]:
    """Every text among a spec's settings, with the name of its setting where that is known."""
    names = POSITIONS.get(spec.name, ())
    placed = [*((names[i] if i < len(names) else "", value) for i, value in enumerate(spec.args)), *spec.kwargs.items()]
    while placed:
        place, value = placed.pop(0)
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, (tuple, list, set, frozenset)):
            placed += [(place, item) for item in value]
        elif isinstance(value, dict):
            placed += [(place, item) for pair in value.items() for item in pair]
        elif isinstance(value, bytes):
            yield place, repr(value)


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
