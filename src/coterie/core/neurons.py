"""A layer of neurons inside a model's flat vector: what belongs to each of them, so that they can be put in another order."""

from dataclasses import dataclass, field

from coterie.core.layout import Slice


@dataclass(frozen=True)
class NeuronLayer:
    """A dense or convolutional layer: the weights (out, in, ...), and all that has one number for each of its neurons."""

    weight: Slice
    own: list[Slice] = field(default_factory=list)  # (out,) each: the bias, and a batch norm's scale, shift and statistics

    @property
    def neurons(self) -> int:
        return self.weight.shape[0]
