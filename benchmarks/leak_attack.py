"""How well label proportions can be read off what clients send: by ridge regression learned on other federations, and without learning."""

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coterie.core.arrays import Doubles
from coterie.core.layout import Layout

PENALTIES = np.logspace(-3, 5, 17)


@dataclass(frozen=True)
class Federations:
    """What was sent and what is true, client by client, over several federations."""

    sent: Doubles  # (n, p)
    shares: Doubles  # (n, C) label proportions of the training parts


def learned(known: Federations, other: Federations) -> float:
    """The correlation of recovered and true proportions on other federations, the attacker having learned on federations it knows.

    Proportions are taken less their means in the known federations, so that knowing which classes are common counts for nothing.
    """
    usual = known.shares.mean(axis=0)
    model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES)).fit(known.sent, known.shares)
    return correlation(model.predict(other.sent) - usual, other.shares - usual)


def analytic(sent: Federations, layout: Layout) -> float:
    """The same without any learning: the gradient of the last bias is the mean predicted probability less the share of the class, so what
    a class's bias was pushed up shows how common it is (an update points against the gradient: the sign is that of the correlation)."""
    bias = layout.weights[-1]
    pushed = sent.sent[:, bias.begin : bias.end]
    return abs(correlation(pushed - pushed.mean(axis=0), sent.shares - sent.shares.mean(axis=0)))


def correlation(one: Doubles, other: Doubles) -> float:
    """Pearson's, over all clients and classes; 0 where one of them does not vary."""
    if one.std() == 0 or other.std() == 0:
        return 0.0
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
