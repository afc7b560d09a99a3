"""The settings of methods that can group clients by sketches of what they would otherwise send whole."""

from abc import ABC
from dataclasses import dataclass

from coterie._util.errors import UserError
from coterie.core.method import Context, Method, S
from coterie.core.settings import setting
from coterie.core.sketches import Sketch


@dataclass(frozen=True, kw_only=True)
class SketchingMixin(Method[S], ABC):
    """What leaves a client for grouping: everything, or a few random projections of it, clipped and noised where that is wanted."""

    sketch: int | None = setting(None, "Random projections that leave a client for grouping; none: all its numbers.", least=1)
    sketch_clip: float | None = setting(None, "The longest sketch that leaves (L2 norm); needs sketch.", above=0)
    sketch_noise: float = setting(0.0, "Deviation of the noise on each number of a sketch, in clips.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch_clip is not None and self.sketch is None:
            raise UserError(f"{type(self).__name__} cannot use sketch_clip without sketch: add sketch=64.")
        if self.sketch_noise and self.sketch_clip is None:
            raise UserError(f"{type(self).__name__} cannot use sketch_noise without sketch_clip, its unit: add sketch_clip=1.")

    def sketching(self, ctx: Context) -> Sketch | None:
        """What clients are asked for; None where all their numbers are no more than a sketch would have."""
        return ctx.sketch(self.sketch, self.sketch_clip, self.sketch_noise)
