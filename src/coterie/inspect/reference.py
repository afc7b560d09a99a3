"""One population of the same spread: what a federation without groups would have sent.

Label proportions are drawn from the Dirichlet distribution that fits the clients' label counts best; what goes beyond labels from a normal
distribution with the covariance that the two halves share; and sampling noise from the scatter of single samples, class by class. Client
sizes are the real ones. Nothing in it has gaps, so groups found in it are what grouping finds in a continuum.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

from coterie.arrays import Doubles
from coterie.inspect.structure import shared_directions
from coterie.inspect.views import Views


class OnePopulation:
    """Draws the points of every view, as `Views.points` has them, and the label counts (n, C) they come with."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.concentration = dirichlet(views.counts.sum(axis=0))
        beyond = views.points[-1]  # without labels: all there is
        weight = views.sizes[0] * views.sizes[1] / views.sizes.sum(axis=0)
        spread, directions = shared_directions(beyond, weight)
        self.factor = np.sqrt(spread)[:, None] * directions.T  # (r, p)

    def draw(self, rng: np.random.Generator) -> tuple[tuple[Doubles, ...], Doubles]:
        views, (n, classes) = self.views, self.views.counts.shape[1:]
        amounts = rng.gamma(self.concentration, size=(n, classes)) + 1e-300
        proportions = amounts / amounts.sum(axis=1, keepdims=True)
        own = rng.standard_normal((n, len(self.factor))) @ self.factor  # the client's own, in both halves
        counts = np.stack([rng.multinomial(m.astype(np.int64), proportions) for m in views.sizes]).astype(np.float64)
        beyond = own + sum(
            np.sqrt(counts[:, :, c, None]) / views.sizes[..., None] * (rng.standard_normal((2, n, len(factor))) @ factor)
            for c, factor in enumerate(views.noise)
        )
        labels = counts / views.sizes[..., None] @ views.means
        return (labels + beyond, beyond)[: len(views.names)], counts.sum(axis=0)


def dirichlet(counts: Doubles) -> Doubles:
    """(C,) the concentration of the Dirichlet-multinomial distribution under which these counts (n, C) are likeliest."""
    n, classes = counts.shape
    sizes = counts.sum(axis=1)

    def surprise(logs: Doubles) -> tuple[float, Doubles]:
        a = np.exp(logs)
        whole = a.sum()
        likelihood = n * gammaln(whole) - gammaln(sizes + whole).sum() + gammaln(counts + a).sum() - n * gammaln(a).sum()
        slope = n * digamma(whole) - digamma(sizes + whole).sum() + digamma(counts + a).sum(axis=0) - n * digamma(a)
        return -float(likelihood), -slope * a

    start = np.log((counts.sum(axis=0) + 0.5) / (counts.sum() + 0.5 * classes) * classes / 2)
    found = minimize(surprise, start, jac=True, method="L-BFGS-B", bounds=[(-7, 9)] * classes)
    return np.asarray(np.exp(found.x))


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
