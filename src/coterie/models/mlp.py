"""Dense models: multinomial logistic regression (MCLR) and multilayer perceptrons, which are one class."""

from math import prod

from torch import Tensor, nn

from coterie.models.layers import check_counts, initialise_glorot


class Mlp(nn.Module):
    """Linear layers with ReLU between them on the flattened input; without a hidden layer it is MCLR.

    The fused kernels know this class by its type and read `sizes`; the parameters are, layer by layer, the weight (out, in) and the
    bias (out). Keep both as they are.
    """

    sizes: tuple[int, ...]  # (in, hidden 1, ..., out)

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.layers = nn.ModuleList(initialise_glorot(nn.Linear(a, b)) for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        h = x.reshape(x.shape[0], self.sizes[0])  # (n, in)
        for layer in self.layers[:-1]:
            h = layer(h).relu()
        logits: Tensor = self.layers[-1](h)  # (n, out)
        return logits


def mclr(_input_shape: tuple[int, ...], _outputs: int) -> Mlp:
    """Multinomial logistic regression: one linear layer, convex."""
    return Mlp((prod(_input_shape), _outputs))


def mlp(_input_shape: tuple[int, ...], _outputs: int, *hidden: int) -> Mlp:
    """Dense layers with ReLU, hidden widths in order, as in mlp(1280, 640, 120); a bare mlp has one of 128."""
    check_counts("mlp", **{f"hidden width {i}": width for i, width in enumerate(hidden, start=1)})
    return Mlp((prod(_input_shape), *(hidden or (128,)), _outputs))
