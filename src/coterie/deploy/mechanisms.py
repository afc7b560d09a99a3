"""The privacy section of a policy: nothing, noise on a client's whole update, or noise on every step of its training.

Each says in words what one "unit" of its protection is, because an epsilon means nothing without it.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

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
