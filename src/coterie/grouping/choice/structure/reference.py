"""One population of the same spread: what a federation without groups would have sent.

Label proportions are drawn from a Dirichlet distribution about the federation's class totals, as spread out as the clients' label counts
make likeliest; what goes beyond labels from a normal distribution with the covariance that the two halves share, less what noise adds to
it; and sampling noise from the scatter of single samples, class by class. Client sizes and class totals are the real ones. Nothing in it
has gaps, so groups found in it are what grouping finds in a continuum.
"""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from coterie.core.arrays import Doubles
from coterie.grouping.choice.structure.placing import common_covariance
from coterie.grouping.choice.structure.views import Views, evening, scatter_of

RAKINGS = 20  # sweeps over rows and columns; totals need not be met to the last sample


class OnePopulation:
    """Draws the points of every view, as `Views.points` has them, and the label counts (n, C) they come with."""

    def __init__(self, views: Views, reach: float) -> None:
        """`reach` is that of noise in the last view."""
        self.views = views
        self.concentration = fitted_dirichlet(views.counts.sum(axis=0))
        self.factor = _debiased(views.points[-1], views.sizes, reach)  # without labels: of all there is

    def draw(self, rng: np.random.Generator) -> tuple[tuple[Doubles, ...], Doubles]:
        views, (n, classes) = self.views, self.views.counts.shape[1:]
        held = views.counts.sum(axis=0)
        proportions = raked(rng.gamma(self.concentration, size=(n, classes)) + 1e-300, held.sum(axis=1), held.sum(axis=0))
        counts = np.stack([rng.multinomial(m.astype(np.int64), proportions) for m in views.sizes]).astype(np.float64)
        noise = [  # of the mean of a half's samples of each class
            rng.standard_normal((2, n, len(factor))) @ factor / np.sqrt(np.maximum(counts[:, :, c, None], 1))
            for c, factor in enumerate(views.noise)
        ]
        even = evening(scatter_of(noise, counts), counts.sum(axis=(0, 1)))
        shares = counts / views.sizes[..., None]
        beyond = sum(shares[:, :, c, None] * own for c, own in enumerate(noise)) @ even
        beyond += rng.standard_normal((n, len(self.factor))) @ self.factor  # the client's own, in both halves
        labels = shares @ (views.means @ even)
        return (labels + beyond, beyond)[: len(views.names)], counts.sum(axis=0)


def fitted_dirichlet(counts: Doubles) -> Doubles:
    """(C,) the concentration, in proportion to the class totals, under which these counts (n, C) are likeliest (Dirichlet-multinomial).

    One number is fitted, not one a class: how common a class is, the totals say already.
    """
    totals, sizes = counts.sum(axis=0) + 0.5, counts.sum(axis=1)
    mean = totals / totals.sum()

    def surprise(log: float) -> float:
        a = np.exp(log) * mean
        ways = len(counts) * (gammaln(a.sum()) - gammaln(a).sum()) - gammaln(sizes + a.sum()).sum() + gammaln(counts + a).sum()
        return -float(ways)

    return np.asarray(np.exp(minimize_scalar(surprise, bounds=(-7, 12), method="bounded").x) * mean)


def raked(amounts: Doubles, sizes: Doubles, totals: Doubles) -> Doubles:
    """(n, C) label proportions whose mixture over clients of these sizes has these class totals (iterative proportional fitting).

    Who holds much of a class is chance; how much of it there is in the federation is known. Letting that vary as well makes the reference
    clump more than a federation would, and the test cautious.
    """
    for _ in range(RAKINGS):
        amounts = amounts * (totals / amounts.sum(axis=0))
        amounts = amounts * (sizes / amounts.sum(axis=1))[:, None]
    return np.asarray(amounts / amounts.sum(axis=1, keepdims=True))


def _debiased(points: Doubles, sizes: Doubles, reach: float) -> Doubles:
    """(r, p) a factor F of the covariance F'F that the halves share: of its eigenvalues, what rises above the reach of noise."""
    values, directions = np.linalg.eigh(common_covariance(points, sizes[0] * sizes[1] / sizes.sum(axis=0)))
    kept = values > reach
    return np.asarray(np.sqrt(values[kept] - reach)[:, None] * directions[:, kept].T)


def company(counts: Doubles) -> float:
    """How much classes keep each other's company: the sum of squared correlations, over clients, between (roots of) label proportions.

    In a Dirichlet distribution one class has no more to do with a second than with a third, so a federation in which the same classes
    come together again and again stands out against the reference.
    """
    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    roots = roots[:, roots.std(axis=0) > 0]
    if roots.shape[1] < 3:  # with two classes, one says all of the other
        return 0.0
    return float(np.sum(np.triu(np.corrcoef(roots.T), 1) ** 2))
