"""A site's policy: a TOML file that the site owns and that no message of the server can change.

Holds the tables of the file (privacy mechanisms, automatic approval), the default file and the reader.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Ints
from coterie.core.specs import Spec, parse, split_at
from coterie.deploy.files import escape_text
from coterie.deploy.messages import Denial
from coterie.deploy.orders import ASKS, TABLE_ASKS, AskName, OrderTerms

if TYPE_CHECKING:
    from coterie.engines.engine import StampedAsk
    from coterie.engines.world import World


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1)]


class PolicyTable(BaseModel):
    """A table of a policy file: keys that it does not know are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoPrivacy(PolicyTable):
    """Answers leave as they are."""

    unit: ClassVar[str] = "nothing: answers leave as they are"

    mechanism: Literal["none"] = "none"


class ClipNoise(PolicyTable):
    """Whatever is made of a client's data is clipped and noised before it leaves: updates, gradients, losses, errors, evaluations."""

    unit: ClassVar[str] = "all data of a client, in each answer it sends"

    mechanism: Literal["clip+noise"]
    clip: Positive  # the longest update (L2 norm) that leaves
    noise: Positive  # deviation of the noise on every number, in clips
    delta: Delta = 1e-5
    epsilon_limit: Positive | None = None

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity: the server knows that the site answered, so two possible updates are up to two clips apart."""
        return self.noise / 2


class DpSgd(PolicyTable):
    """Every step of local training is private, sample by sample."""

    unit: ClassVar[str] = "one sample of this site"

    mechanism: Literal["dp-sgd"]
    noise_multiplier: Positive  # deviation of the noise on a step's sum of gradients, in max_grad_norms
    max_grad_norm: Positive  # the longest gradient (L2 norm) of one sample
    delta: Delta
    epsilon_limit: Positive
    protect_tests: bool = True  # whether evaluations of test parts are noised and charged, too, to a budget of the test samples' own


Mechanism = Annotated[NoPrivacy | ClipNoise | DpSgd, Field(discriminator="mechanism")]
MECHANISMS: dict[str, type[PolicyTable]] = {"none": NoPrivacy, "clip+noise": ClipNoise, "dp-sgd": DpSgd}


class ApprovalRules(PolicyTable):
    """The policy's table of orders that are approved without asking the site's operator."""

    any: bool = False
    methods: Annotated[tuple[str, ...], Field(strict=False)] = ()  # by name or whole spec; "inspect" is an inspection
    models: Annotated[tuple[str, ...], Field(strict=False)] = ()  # likewise; empty: those that the policy lets run
    maximum_rounds: Annotated[int, Field(ge=1)] | None = None
    maximum_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # of any client, with all that it has spent before

    def find_objection(self, terms: "OrderTerms", epsilon: float | None) -> str | None:
        """Return why an order is not approved by this table; None where it is. `epsilon` is the largest of a client after it."""
        if self.any:
            return None
        if foreign := [spec for spec in terms.methods if not _is_listed(spec, self.methods)]:
            return f"the policy's [approve] does not list the method {escape_text(foreign[0])!r}"
        if self.models and terms.facts.has_model and not _is_listed(terms.model, self.models):
            return f"the policy's [approve] does not list the model {escape_text(terms.model)!r}"
        if self.maximum_rounds is not None and terms.rounds > self.maximum_rounds:
            return f"it has {terms.rounds} rounds, the policy's [approve] allows {self.maximum_rounds}"
        if self.maximum_epsilon is not None and (epsilon is None or epsilon > self.maximum_epsilon):
            details = "no privacy mechanism limits it" if epsilon is None else f"epsilon could reach {epsilon:.3g}"
            return f"{details}, the policy's [approve] allows {self.maximum_epsilon:g}"
        return None


def _is_listed(spec: str, names: Iterable[str]) -> bool:
    """Whether a spec is in a list: as it is, or each of its parts (``fedavg+guard``) by name."""
    parts = [part.partition("(")[0].strip() for part in split_at(spec, "+")]
    return spec in names or all(part in names for part in parts)


UNUSUAL_ASKS: tuple[AskName, ...] = ("Describe", "AskSubspaces")  # which show means of features, or directions of samples
USUAL_ASKS: tuple[AskName, ...] = (*(name for name in ASKS if name not in UNUSUAL_ASKS), *TABLE_ASKS)
SKETCHED: tuple[AskName, ...] = ("SketchedTrain", "SketchedGradient")  # answered, too, where the whole is

# Coterie's own; listed here so that reading a policy needs no torch
BUILT_MODELS = ("cnn", "densenet121", "lstm", "mclr", "mlp", "resnet18", "resnet50", "rnn")

# These read a file or folder of the site, or the hub, that the server names: only where the site lists them.
READING_MODELS = ("efficientnet_lite0", "fusion", "lm", "text")
OWN_MODELS = tuple(sorted((*BUILT_MODELS, *READING_MODELS)))
# PartRule is that of private layers
OWN_RULES = ("ALARule", "APFLRule", "DittoRule", "GraphRule", "LossRule", "MOONRule", "MixtureRule", "PartRule")

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
SHOWN_LENGTH = 40  # of a word in it
Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


class Policy(PolicyTable):
    """What a site answers and what may leave it, with defaults."""

    asks: Annotated[tuple[AskName, ...], Field(strict=False)] = USUAL_ASKS
    models: Names = BUILT_MODELS  # by name; others as package.module:Class
    rules: Names = OWN_RULES  # local rules, likewise
    maximum_rounds: Annotated[int, Field(ge=0)] = 1000
    maximum_epochs: Annotated[int, Field(ge=1)] = 1000  # of one ask
    maximum_steps: Annotated[int, Field(ge=1)] = 100_000  # of one client, in one ask
    asks_per_run: Annotated[int, Field(ge=0)] = 100_000
    models_per_run: Annotated[int, Field(ge=0)] = 50_000  # on which one client is evaluated: Losses, AskErrors, Evaluate
    models_in_all: Annotated[int, Field(ge=0)] = 500_000  # the same over all runs on a client's data
    minimum_samples: Annotated[int, Field(ge=1)] = 10  # a client that would answer from fewer, or from all but fewer, is silent
    message_megabytes: Annotated[float, Field(gt=0)] = 256.0  # of one ask or one reply
    rounding: Annotated[int, Field(ge=1)] = 3  # samples that losses and counts of evaluations are rounded to; 1: exact
    sample_counts: bool = True  # whether the server learns how many samples a client has
    class_counts: bool = True  # whether it learns of evaluations class by class
    sketch_numbers: Annotated[int, Field(ge=1)] = 256  # directions that all sketches together may show, where the whole may not leave
    label_shares: bool = False  # whether it may ask about the samples of one class
    aggregate: bool = False  # whether one reply leaves for all clients of the site: their mean or sum, as that of one client
    small_clients: Literal["silent", "merge"] = "silent"  # what becomes of clients with fewer samples than `minimum_samples`
    error_messages: bool = True  # whether it gets the text of an error, which may quote a value
    model_files: dict[str, str] = Field(default_factory=dict)  # what a model's spec may name, and the file, folder or hub model meant
    privacy: Mechanism = NoPrivacy()
    approve: ApprovalRules = ApprovalRules()  # orders that are answered without asking the site's operator

    def find_denial(self, stamped: "StampedAsk", world: "World") -> Denial | None:
        """Why an ask is not answered; None where it is."""
        from coterie.deploy.site.permission import find_denials

        return next(map(Denial, find_denials(self, stamped, world)), None)

    def deny_model(self, spec: str) -> Denial | None:
        """The same of a model, by its spec: to be asked before it is built, for building it imports and runs its code."""
        if len(spec) > SPEC_LENGTH:
            return Denial(f"A model of {len(spec):,} characters is not built here: at most {SPEC_LENGTH:,} are read.")
        try:
            parsed = parse(spec)
        except UserError:
            return Denial("The model's spec cannot be read.")
        if (denied := self.deny_model_name(spec)) is not None:
            return denied
        for place, value in _list_words(parsed):
            if value not in self.model_files and value not in MODEL_WORDS.get(parsed.name, {}).get(place, ()):
                return Denial(
                    f"The model {parsed.name!r} may not name {value[:SHOWN_LENGTH]!r} here: a server names no file, folder, module or "
                    "address; the site lists what a model may use in its policy ('model_files')."
                )
        return None

    def deny_model_name(self, spec: str) -> Denial | None:
        """Why a model may not run, whatever its settings; None where it may."""
        name = parse(spec).name
        if name in self.models:
            return None
        return Denial(f"The model {name!r} may not run here: the site's policy names {', '.join(self.models) or 'none'}.")

    def local_model(self, spec: str) -> str:
        """A permitted model's spec with the site's own files in place of the names that the server uses for them."""
        parsed = parse(spec)
        if not any(value in self.model_files for _, value in _list_words(parsed)):
            return spec

        def own(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(own(item) for item in value)
            return self.model_files.get(value, value) if isinstance(value, str) else value

        return str(replace(parsed, args=own(parsed.args), kwargs={name: own(value) for name, value in parsed.kwargs.items()}))

    def disclose_sizes(self, sizes: Ints) -> Ints:
        """Sample counts as the server may know them: all one where they are withheld."""
        return sizes if self.discloses_sizes else sizes.clip(0, 1)

    @property
    def merge_below(self) -> int:
        """The number of samples below which clients are merged; 0: never."""
        return self.minimum_samples if self.small_clients == "merge" else 0

    @property
    def discloses_sizes(self) -> bool:
        """Under clip+noise never: how many samples a client has is part of what is protected."""
        return self.sample_counts and not isinstance(self.privacy, ClipNoise)

    @property
    def discloses_classes(self) -> bool:
        """Whether counts by class leave; noise is added to their sum alone."""
        return self.class_counts and self.discloses_sizes and not self.protects_tests

    @property
    def protects_tests(self) -> bool:
        """Whether a mechanism covers evaluations of test parts."""
        return isinstance(self.privacy, ClipNoise) or (isinstance(self.privacy, DpSgd) and self.privacy.protect_tests)

    @property
    def discloses_errors(self) -> bool:
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
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str = "policy") -> Policy:
    """The policy of a text; `name` is the file's, for errors."""
    try:
        made = Policy.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise UserError(f"The policy file {name} {_describe_fault(error.errors()[0])}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The policy file {name} is not valid TOML: {error}.") from error
    for what, given, own in (("models", made.models, OWN_MODELS), ("rules", made.rules, OWN_RULES)):
        for each in given:
            if ":" not in each and each not in own:
                raise UserError(
                    f"The policy file {name} names {each!r} in {what!r}, which is unknown: {suggest_names(each, own)} "
                    "(one of your own is written package.module:Class)"
                )
    if made.class_counts and not made.sample_counts:
        raise UserError(
            f"The policy file {name} discloses counts by class but not their sum: set 'class_counts' to false, or 'sample_counts' to true."
        )
    if made.approve.any and made.approve != ApprovalRules(any=True):
        raise UserError(f"The policy file {name} approves any order and limits which: omit 'approve.any', or the other keys of [approve].")
    return made


def _list_words(spec: Spec) -> Iterator[tuple[str, str]]:
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


def _describe_fault(fault: Any) -> str:
    """One fault of a file in words: the key, what is wrong with it, what to do."""
    place = [str(part) for part in fault["loc"] if part not in MECHANISMS]
    key = ".".join(place)
    if fault["type"] == "extra_forbidden":
        return f"has an unknown key {key!r}: {suggest_names(place[-1], _known(fault['loc']))}"
    if fault["type"] == "missing":
        return f"lacks the key {key!r}: add it."
    if fault["type"].startswith("union_tag"):
        return f"has no known 'privacy.mechanism': {suggest_names(str((fault.get('ctx') or {}).get('tag', '')), MECHANISMS)}"
    return f"has a wrong {key!r} ({fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r}): correct it."


def _known(place: tuple[Any, ...]) -> list[str]:
    if len(place) > 1 and place[0] == "approve":
        return list(ApprovalRules.model_fields)
    table = MECHANISMS[place[1]] if len(place) > 2 and place[0] == "privacy" else Policy
    return list(table.model_fields)


DEFAULT_POLICY = """\
# What this site answers and what may leave it. The file is yours: no message of the server can change it.
# In words:  coterie policy explain .       After a change:  coterie policy check policy.toml

# The questions that are answered. Take out what your methods do not need: FedAvg needs Train (and Evaluate, to be judged).
# Where Train or Gradient may not leave, "SketchedTrain" and "SketchedGradient" let random projections of updates and gradients out.
# "Describe" lets means and deviations of the features before a model's last layer out; of a softmax regression these are the samples' own.
# "AskSubspaces" lets the main directions of the samples out: of images these are images.
# "DescribeTable" lets names, types, frequent words and rounded ranges of a table's columns out, "CheckTable" how many rows do not fit the
# schema that the sites agree on, "SummarizeTable" means, variances and histograms, "CountTimes" counts of survival times by
# interval: nothing of fewer rows than minimum_samples.
asks = ["Train", "Gradient", "Losses", "AskErrors", "Evaluate", "DescribeTable", "CheckTable", "SummarizeTable", "CountTimes"]

# How many directions such sketches may show, in all runs together, and never more than half of the model's. Asked again with the same
# projection they show nothing new; a server that may ask with ever new ones could put the whole together.
sketch_numbers = 256

# The models and local rules that may run here. One that is not Coterie's is code that you run: it must be named, as
# "package.module:Class".
models = ["cnn", "densenet121", "lstm", "mclr", "mlp", "resnet18", "resnet50", "rnn"]
rules = ["ALARule", "APFLRule", "DittoRule", "GraphRule", "LossRule", "MOONRule", "MixtureRule", "PartRule"]

# Asks that are stamped with a later round are not answered. (What a site gives away in one round this does not limit: 'privacy' does.)
maximum_rounds = 1000

# The longest training that one ask may want of a client.
maximum_epochs = 1000
maximum_steps = 100000

# How often one run may ask, and on how many different models a client is evaluated (Losses, AskErrors, Evaluate): in one run, and in all
# runs on its data. 200 rounds of 10 methods with 5 seeds take 10,000 models for each part of the data that is evaluated.
asks_per_run = 100000
models_per_run = 50000
models_in_all = 500000

# A client that would answer from fewer samples than this is silent. An answer from one sample is nearly that sample. So is one that would
# answer from all but fewer: less an answer about all, that is an answer about these few.
minimum_samples = 10

# What becomes of clients with fewer samples: "silent", or "merge": they become one client with the next smallest of the site.
small_clients = "silent"

# Whether one reply leaves for all clients (wards) of this site, as if it were one client: the mean of their models, weighted by samples,
# and sums of counts. The server does not learn which wards there are. Methods whose asks have no mean are refused before the first round.
aggregate = false

# Losses, errors and counts of evaluations are rounded at random to what this many samples can change, and one sample's loss is cut.
# 1 sends them exactly; a method that compares losses (ifca, hypocluster) on clients of few samples may need that.
rounding = 3

# The largest ask or reply.
message_megabytes = 256.0

# Whether the server learns how many training samples a client has, exactly: they weigh it in averages. Without, each client counts as one
# sample, and evaluations are in hundredths.
sample_counts = true

# Whether evaluations leave class by class: that shows how many test samples of each class there are. Without, only accuracy, mean loss
# and AUROC leave.
class_counts = true

# Whether the server may ask about the samples of one class alone. Its answers show how many training samples of each class there are.
label_shares = false

# Whether the text of an error is sent to the server, which might quote a value. Its kind is sent in any case.
error_messages = true

[model_files]
# A model's spec from the server names no file, folder or address. What it may call by a name, and what that is here:
# glove = "/data/glove.npz"          # lstm(embeddings=glove)
# bert-tiny = "/models/bert-tiny"    # text(bert-tiny), where "text" is among the models

[approve]
# A new order (a run: methods, model, rounds, asks) is answered only after your yes: 'coterie join' shows it, and
# 'coterie policy approve KIT ORDER' approves it. Orders that this table lists are approved without asking you.
# Whether every order is.
any = false

# Or: orders of these methods alone, by name or whole spec; "inspect" is 'coterie inspect --federation', and "schema"
# and "statistics" are those of 'coterie federation'. Empty: none.
methods = []

# And of these models alone; empty: those of 'models' above.
models = []

# And of at most so many rounds, and so much epsilon of any client in all that it has answered.
# maximum_rounds = 100
# maximum_epsilon = 4.0

[privacy]
# "none": models and gradients leave as they are, other numbers rounded.
mechanism = "none"

# Or: a client's whole update (the trained model less the one received) is cut to the length `clip`, and every number gets
# Gaussian noise of deviation noise * clip. Gradients, losses, errors and evaluations are noised alike, and each answer is charged; numbers
# of samples and steps, and counts by class, do not leave.
# mechanism = "clip+noise"
# clip = 1.0
# noise = 0.5
# delta = 1e-5
# epsilon_limit = 8.0        # may be left out: then epsilon is counted but not limited

# Or: every training sample is protected in every step of training (DP-SGD). Only Train, and Evaluate on test parts, are answered.
# Evaluations are noised by the same noise_multiplier, and charged to a budget of the test samples' own, unless protect_tests is false.
# mechanism = "dp-sgd"
# noise_multiplier = 1.0
# max_grad_norm = 1.0
# delta = 1e-5
# epsilon_limit = 8.0
# protect_tests = true
"""


def approve_orders(path: Path, **table: Any) -> None:
    """Change keys of the [approve] table of a policy file; a key that is not there, or is commented out, is added."""
    head, mark, rest = path.read_text(encoding="utf-8").partition("[approve]\n")
    own, next_, tail = rest.partition("\n[")
    for name, value in table.items():
        line = f"{name} = {json.dumps(value)}"
        own, changed = re.subn(rf"(?m)^(# )?{name} = .*$", lambda found, line=line: line, own, count=1)  # type: ignore[misc]
        own += "" if changed else f"{line}\n"
    path.write_text(head + mark + own + next_ + tail, encoding="utf-8")
