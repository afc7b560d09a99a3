"""Models whose forward takes several inputs, by position or by keyword."""

from torch import Tensor, nn

from coterie.core.layout import Inputs, InputShape
from coterie.models.frozen import FrozenBody


class SeveralInputs(nn.Module):
    """Takes rows apart and hands the inputs to the model: all that lies between one array of samples and a forward of several."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    @property
    def told(self) -> str:
        """What the model's numbers do not tell of it."""
        return str(getattr(self.model, "told", ""))

    def forward(self, rows: Tensor) -> Tensor:
        found = []
        for piece, shape, whole in zip(self.inputs.pieces, self.inputs.shapes, self.inputs.tokens, strict=True):
            own = rows[..., piece].reshape(*rows.shape[:-1], *shape)
            found.append(own.long() if whole else own)
        named = self.inputs.names
        outputs: Tensor = self.model(**dict(zip(named, found, strict=True))) if named else self.model(*found)
        return outputs


def taking(module: nn.Module, shape: InputShape) -> nn.Module:
    """The module for rows of samples, whether its forward takes one input or several."""
    if not isinstance(shape, Inputs):
        return module
    if isinstance(module, FrozenBody):  # the head takes features, whatever the body takes
        return FrozenBody(SeveralInputs(module.body, shape), module.head)
    return SeveralInputs(module, shape)


def told_shape(shape: InputShape) -> object:
    """What a factory is given as `input_shape`."""
    return shape.shape if isinstance(shape, Inputs) else shape
