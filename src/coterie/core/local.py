"""How a client trains."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from coterie.core.augmentation import augmentation_of
from coterie.core.rules import LocalRule
from coterie.core.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Local:
    """Local training, with the settings that every study names."""

    epochs: int = setting(1, "Local epochs a round.", least=1)
    batch_size: int | None = setting(10, "Batch size; 0 is the full batch.", least=1, flag="--batch", zero_is_none=True)
    lr: float = setting(0.05, "Local learning rate.", above=0)
    momentum: float = setting(0.0, "Local momentum.", least=0, below=1)
    weight_decay: float = setting(0.0, "Local weight decay.", least=0)
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "Local optimiser; adamw runs client by client.")
    mu: float = setting(0.0, "Weight of a proximal term: mu * (w - anchor) is added to the gradient.", least=0)
    max_steps: int | None = setting(None, "Steps at most; all that the epochs take unless given.", least=1)
    augment: str | None = setting(None, "Random changes of training images: flip+crop(4)+jitter(0.2)+rotate(15), or some of them.")
    rule: LocalRule | None = None  # a loss and a step of one's own

    def __post_init__(self) -> None:
        check_settings(self, "Local training")
        augmentation_of(self.augment)  # a wrong one is refused here

    def but(self, **changes: Any) -> "Local":
        """The same settings with some changed."""
        try:
            return _changed(self, tuple(changes.items()))
        except TypeError:  # a rule of one's own that cannot be looked up
            return replace(self, **changes)


@lru_cache(maxsize=256)
def _changed(local: Local, changes: tuple[tuple[str, Any], ...]) -> Local:
    """Kept, since every lane makes the same change in every round, and settings are checked each time they are made."""
    return replace(local, **dict(changes))
