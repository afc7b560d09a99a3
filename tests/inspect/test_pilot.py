"""The pilot's arithmetic, on numbers made by hand."""

import numpy as np
import pytest

from coterie.core.asks import Share
from coterie.inspect.pilot import EvaluationFold, Pilot


def test_the_pilot_adds_up() -> None:
    one, grouped = np.array([5, 5, 5, 5]), np.array([9, 9, 8, 9])
    random = np.stack([one] * 19)
    found = Pilot(np.arange(4), np.full(4, 10), one, grouped, random, "validation parts")
    assert found.accuracies == pytest.approx((0.5, 0.875, 0.5))
    assert found.gain == pytest.approx(0.375)
    # differences 4 4 3 4 less 3.75 each: sum of squares .75; sqrt(4/3 * .75) / 40
    assert found.error == pytest.approx(1 / 40)
    assert (found.p_random, found.verdict) == (0.05, "help")
    assert Pilot(np.arange(4), np.full(4, 10), grouped, one, random, "").verdict == "hurt"
    lucky = Pilot(np.arange(4), np.full(4, 10), one, grouped, np.stack([grouped] * 19), "")
    assert (lucky.p_random, lucky.verdict) == (1.0, "not shown")


def test_no_half_is_judged_on_what_it_was_trained_on() -> None:
    folds = EvaluationFold.on(validation=False)
    assert [(fold.trained_on, fold.judged_on) for fold in folds] == [(Share(fold=0), Share(fold=1)), (Share(fold=1), Share(fold=0))]
    assert EvaluationFold.on(validation=True) == (EvaluationFold("validation"),)
