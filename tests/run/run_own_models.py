"""Models of a user's own, for tests of what is said of them."""

from torch import Tensor, nn


class Plain(nn.Module):
    """One layer."""

    def __init__(self, inputs: int = 5, outputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


class Normed(Plain):
    """The same behind batch norm."""

    def __init__(self, inputs: int = 5, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.norm = nn.BatchNorm1d(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))
