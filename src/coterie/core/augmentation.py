"""How training images are changed at random while a client trains: ``flip+crop(4)+jitter(0.2)+rotate(15)``."""

from dataclasses import dataclass
from functools import lru_cache

from coterie.core.errors import UserError, suggestion
from coterie.core.specs import parse, split_at


@dataclass(frozen=True)
class Augmentation:
    """What is done to each image, by draws of its own each time it is met."""

    flip: bool = False  # left and right change places, half of the time
    crop: int = 0  # pixels that an image may be moved by, up or down and left or right; what comes in is zero
    jitter: float = 0.0  # brightness, contrast and saturation, each by a factor in 1 - jitter .. 1 + jitter
    rotate: float = 0.0  # degrees at most, either way


_PLAIN = {"flip": True, "crop": 4, "jitter": 0.2, "rotate": 15.0}
_MOST = {"crop": 1000, "jitter": 1.0, "rotate": 180.0}


@lru_cache(maxsize=16)
def augmentation_of(text: str | None) -> Augmentation | None:
    """What a setting asks for; None for nothing."""
    if text is None:
        return None
    told: dict[str, bool | int | float] = {}
    for part in split_at(text, "+"):
        spec = parse(part)
        if spec.name not in _PLAIN:
            raise UserError(f"Augmentation {spec.name!r} is not known: {suggestion(spec.name, _PLAIN)}")
        value = spec.args[0] if spec.args else _PLAIN[spec.name]
        if spec.name in told or spec.kwargs or len(spec.args) > (spec.name != "flip"):
            raise UserError(f"Augmentation {text!r}: write each once, as in 'flip+crop(4)+jitter(0.2)+rotate(15)'.")
        if spec.name != "flip":
            _check_number(spec.name, value)
        told[spec.name] = value
    return Augmentation(**told)  # type: ignore[arg-type]


def _check_number(name: str, value: object) -> None:
    fits = isinstance(value, int if name == "crop" else (int, float)) and not isinstance(value, bool)
    if not fits or not 0 < value <= _MOST[name]:  # type: ignore[operator]
        kind = "a whole number" if name == "crop" else "a number"
        raise UserError(f"Augmentation {name}({value!r}) should be {kind} above 0 and at most {_MOST[name]:g}.")
