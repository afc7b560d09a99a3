"""What a reply is held against: the roster's counts, and the cohort's median distance."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core import replies as limits_module
from coterie.core.asks import Gradient, Gradients, Losses, LossTable, Refusal, Share, Train, Trained
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.replies import Limits, UpdateNorms, accept

CLIENTS = np.arange(5)
SIZES = np.array([10, 20, 30, 40, 50])
MODELS = np.array([[0.0, 0.0], [100.0, 0.0]], np.float32)
START = np.array([0, 0, 0, 1, 1])
ASK = Train(CLIENTS, MODELS, Local(), start=START)


def trained(lengths: list[float], sizes: np.ndarray = SIZES) -> Trained:
    """Everybody moves along the second axis from the model it was sent."""
    vectors = MODELS[START] + np.array([[0.0, length] for length in lengths], np.float32)
    return Trained(CLIENTS, vectors.astype(np.float32), sizes, np.ones(5, np.int64))


def refused(ask: object, reply: object, limits: Limits) -> dict[int, Refusal]:
    return {client: told.why for client, told in accept(ask, reply, limits).refused.items()}  # type: ignore[type-var, attr-defined]


@pytest.mark.parametrize("cached", [limits_module.CACHED, 4, 1])  # numbers: all rows at a time, two, one (by threads)
def test_far_is_measured_from_the_model_that_each_was_sent_in_medians(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "CACHED", cached)
    # distances 1, 2, 3, 4, 31: the median is 3, and 10 medians are 30. The models sent are 100 apart, which counts for nothing.
    limits = Limits(norm=10)
    assert refused(ASK, trained([1, 2, 3, 4, 31]), limits) == {4: Refusal.TOO_FAR}
    assert refused(ASK, trained([1, 2, 3, 4, 30]), limits) == {}
    assert refused(ASK, trained([1, 2, 3, 4, 1e30]), limits) == {4: Refusal.TOO_FAR}  # too long to square is too long
    assert refused(ASK, trained([1, 2, 3, 4, 1e30]), Limits()) == {}
    kept = accept(ASK, trained([1, 2, 3, 4, 31]), limits)
    assert kept.clients.tolist() == [0, 1, 2, 3]


def test_how_far_is_measured_once_of_a_reply_and_anew_of_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, sound = list[int](), limits_module._compute_norms

    def counted(steps: np.ndarray) -> np.ndarray:
        measured.append(len(steps))
        return sound(steps)

    monkeypatch.setattr(limits_module, "_compute_norms", counted)
    moves = UpdateNorms()
    accepted = accept(ASK, trained([1, 2, 3, 4, 30]), Limits(norm=10), moves)
    assert np.concatenate(moves.of(ASK, accepted)).tolist() == [1, 2, 3, 4, 30]
    assert measured == [5]
    moves.of(replace(ASK, models=MODELS + 1), accepted)  # the same reply to another question
    assert measured == [5, 5]
    moves.forget()
    accepted = accept(ASK, trained([1, 2, 3, 4, 31]), Limits(norm=10), moves)
    assert np.concatenate(moves.of(ASK, accepted)).tolist() == [1, 2, 3, 4]
    assert measured == [5, 5, 5, 4]


def test_nonsense_does_not_enter_the_median() -> None:
    reply = trained([1, 1, np.nan, 1, 9])
    assert refused(ASK, reply, Limits(norm=8)) == {2: Refusal.NOT_FINITE, 4: Refusal.TOO_FAR}


def test_nobody_is_far_among_few_or_where_most_stand_still() -> None:
    few = Train(CLIENTS[:2], MODELS, Local(), start=START[:2])
    assert refused(few, trained([1, 1000, 0, 0, 0]).take(CLIENTS < 2), Limits(norm=1.5)) == {}
    three = Train(CLIENTS[:3], MODELS, Local(), start=START[:3])
    assert refused(three, trained([1, 1, 1000, 0, 0]).take(CLIENTS < 3), Limits(norm=2)) == {2: Refusal.TOO_FAR}
    assert refused(ASK, trained([0, 0, 0, 1, 1000]), Limits(norm=2)) == {}


def test_what_a_client_keeps_is_not_judged() -> None:
    assert refused(replace(ASK, alone=True), trained([1, 2, 3, 4, 1000]), Limits(norm=2)) == {}


@pytest.mark.parametrize("told", [5_000, 49, 51])
def test_a_count_that_is_not_the_roster_s_is_refused(told: int) -> None:
    sizes = np.array([10, 20, 30, 40, told])
    assert refused(ASK, trained([1] * 5, sizes), Limits(SIZES)) == {4: Refusal.MISCOUNTED}
    assert refused(ASK, trained([1] * 5, sizes), Limits()) == {}


def test_every_ask_about_training_samples_is_counted() -> None:
    false = np.array([10, 20, 30, 40, 500])
    gradients = Gradients(CLIENTS, np.zeros((5, 2), np.float32), false, np.zeros(5))
    table = LossTable(CLIENTS, np.zeros((5, 2)), false)
    assert refused(Gradient(CLIENTS, MODELS), gradients, Limits(SIZES)) == {4: Refusal.MISCOUNTED}
    assert refused(Losses(CLIENTS, MODELS), table, Limits(SIZES)) == {4: Refusal.MISCOUNTED}
    assert refused(Losses(CLIENTS, MODELS, part="validation"), table, Limits(SIZES)) == {}  # of those the roster knows no number


def test_of_a_fold_one_can_have_no_more_than_it_holds() -> None:
    sizes = np.array([10, 11, 12, 1, 13])
    fold = replace(ASK, share=Share(fold=1, folds=3))  # 4 to 6 of 10 are in it, 4 to 7 of 11, of one sample none
    most = np.array([3, 4, 4, 1, 4])  # a site that withholds its counts sends one
    assert fold.share is not None
    assert fold.share.count(sizes).tolist() == [3, 4, 4, 0, 4]
    assert refused(fold, trained([1] * 5, most), Limits(sizes)) == {}
    assert refused(fold, trained([1] * 5, most + np.array([0, 1, 0, 0, 0])), Limits(sizes)) == {1: Refusal.MISCOUNTED}
    rest = replace(ASK, share=Share(fold=1, folds=3, rest=True))
    assert refused(rest, trained([1] * 5, np.array([7, 7, 8, 1, 9])), Limits(sizes)) == {}
    assert refused(rest, trained([1] * 5, np.array([8, 7, 8, 1, 9])), Limits(sizes)) == {0: Refusal.MISCOUNTED}


def test_of_a_share_one_can_have_no_more_than_all() -> None:
    label = replace(ASK, share=Share(label=0))
    assert refused(label, trained([1] * 5, SIZES // 2), Limits(SIZES)) == {}
    assert refused(label, trained([1] * 5, SIZES + np.array([0, 0, 0, 0, 1])), Limits(SIZES)) == {4: Refusal.MISCOUNTED}


def test_settings_of_a_plan() -> None:
    assert Plan().counts == "checked"
    assert Plan(norm_bound=float("inf")).norm_bound == float("inf")
    with pytest.raises(UserError, match=r"norm_bound=0\.5"):
        Plan(norm_bound=0.5)
