"""Descriptors of clients, as Flux and FEROMA compare them: moments of penultimate features, overall and by class, in scaled blocks."""

from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Share
from coterie.core.descriptions import Describe, Described, count_features
from coterie.core.method import Context
from coterie.core.rng import make_key

NO_CLASS = -1.0  # in place of the moments of a class with at most one sample


def check_describable(name: str, labels: bool, ctx: Context) -> None:
    """Refuse, before anything is trained, what cannot be described."""
    count_features(ctx.layout)
    if labels and not ctx.task.counts_classes:
        raise UserError(f"{name} goes by classes, and this is a {ctx.task}: use labels=false.")
    if labels and ctx.outputs < 2:
        raise UserError(f"{name} goes by classes, and there is only one: use labels=false.")


def ask_descriptors(clients: Ids, model: Floats, ctx: Context, *, labels: bool, share: Share | None = None) -> Describe:
    """The question for moments at this model (1, d), of as many random projections as there are classes; all clients share them."""
    features, wanted = count_features(ctx.layout), max(ctx.outputs, 2)
    key = make_key(ctx.seed, "descriptors") if wanted < features else None
    return Describe(clients, model, size=min(wanted, features), key=key, classes=ctx.outputs if labels else 0, share=share)


def read_blocks(found: Described) -> Doubles:
    """(n, B, p) the blocks of each client: means and deviations of all samples, then by class."""
    moments = np.stack([found.means, found.deviations], axis=2)  # (n, 1 + C, 2, p)
    moments[:, 1:][found.counts[:, 1:] <= 1] = NO_CLASS
    return moments.reshape(len(found), 2 * moments.shape[1], moments.shape[3])


@dataclass(frozen=True)
class BlockScale:
    """Puts each block between 0 and 1, by its least and largest number over clients."""

    low: Doubles  # (B,)
    high: Doubles

    @classmethod
    def fit(cls, blocks: Doubles) -> "BlockScale":
        return cls(blocks.min(axis=(0, 2)), blocks.max(axis=(0, 2)))

    def apply(self, blocks: Doubles) -> Doubles:
        """(n, B * p) scaled points; a block in which nothing differs is zero."""
        span = self.high - self.low
        scaled = (blocks - self.low[:, None]) / np.where(span > 0, span, 1.0)[:, None]
        return np.asarray(scaled.reshape(len(blocks), blocks.shape[1] * blocks.shape[2]))
