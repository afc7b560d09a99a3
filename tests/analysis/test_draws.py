"""Several draws of one study, by hand: a draw is the unit, every draw counts alike, and each source of error is told apart."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.made_records import AVG, GROUP, RANDOM, by_hand, flat
from coterie.analysis.findings import Findings, compute_findings
from coterie.analysis.records import Records
from coterie.analysis.verdict import write_verdicts
from coterie.core.arrays import Array


def drawn(number: int, right: dict[str, Array], data: str = "by hand", **changes: object) -> Records:
    """One draw of a study; each has seeds of its own."""
    made = by_hand(right)
    settings = replace(made.settings, draws=(number,), own_seeds=True, data=data)
    return replace(made, settings=settings, **changes)  # type: ignore[arg-type]


GAINS = (8, 5, 9, 6, 7, 4)  # points of each draw


def study(data: str = "by hand", clients: int = 12) -> Findings:
    def level(points: int) -> Array:
        return flat(points, 2, clients=clients)

    return compute_findings([drawn(i, {AVG: level(50), GROUP: level(50 + gain), RANDOM: level(50)}, data) for i, gain in enumerate(GAINS)])


def test_a_draw_counts_once_whatever_its_seeds() -> None:
    found = study()
    gap = found.methods[GROUP].gap
    assert str(found.repetitions) == "6 draws, 2 seeds each"
    assert gap.n == 6
    assert gap.mean == pytest.approx(np.mean(GAINS) / 100)
    low, high = stats.t.interval(0.95, 5, np.mean(GAINS), stats.sem(GAINS))
    own = gap.sources.estimated["draws"]
    assert (100 * own.low, 100 * own.high) == pytest.approx((low, high))
    assert gap.sources.estimated["seeds"].width == 0  # both seeds of a draw gain alike
    assert gap.spread.shares["draws"] == 1.0
    assert found.methods[GROUP].corrected_p == pytest.approx(2.0**-6)


def test_a_draw_with_fewer_seeds_counts_as_much() -> None:
    draws = [drawn(i, {AVG: flat(50, 2), GROUP: flat(50 + gain, 2)}) for i, gain in enumerate(GAINS)]
    lost = draws[0].credits.copy()
    lost[1, 1, 1:] = -1  # the second seed of the first draw did not reach the end
    draws[0] = replace(draws[0], credits=lost)
    found = compute_findings(draws)
    assert found.methods[GROUP].gap.mean == pytest.approx(np.mean(GAINS) / 100)
    assert found.methods[GROUP].missing == 1
    assert "1 of 12 pairs of runs are left out" in write_verdicts(found)[-1]


def test_draws_that_have_not_come_as_far_wait() -> None:
    draws = [drawn(i, {AVG: flat(50, 2), GROUP: flat(50 + gain, 2)}) for i, gain in enumerate(GAINS)]
    short = draws[-1].credits.copy()
    short[:, :, 2:] = -1
    found = compute_findings([*draws[:-1], replace(draws[-1], credits=short)])
    assert found.repetitions.draws == (0, 1, 2, 3, 4)
    assert "Only 5 of 6 draws are complete and compared." in write_verdicts(found)


@pytest.mark.parametrize(
    ("data", "same", "overlap"),
    [("heart", True, 100 / 110), ("digits/rotated(clients=12)", False, 100 / 110), ("synthetic(1,1)", False, 0.0)],
)
def test_what_is_redrawn_says_whether_a_client_is_the_same(data: str, same: bool, overlap: float) -> None:
    found = study(data)
    assert found.repetitions.same_clients == same
    assert found.repetitions.overlap == pytest.approx(overlap)  # 100 test samples of 110 a client holds
    fairness = found.methods[GROUP].fairness
    assert fairness.gain == pytest.approx(np.full(12, np.mean(GAINS) / 100 if same else GAINS[0] / 100))
    assert fairness.tested == 12


def test_each_source_is_told_in_the_verdict() -> None:
    found = study()
    said, own = write_verdicts(found)[-1], found.methods[GROUP].gap.sources.estimated["draws"]
    assert f"over 6 draws of the data {100 * own.low:+.1f} to {100 * own.high:+.1f}" in said
    assert "over other seeds of these draws +6.5 to +6.5" in said
    assert "over 12 test clients, 1200 samples, 6 draws" in said
    assert "the gain is from similarity (+6.5" in said


def test_answers_kept_sample_by_sample_narrow_the_interval_of_few_clients() -> None:
    """Four clients of 100 samples: right on 50 and on 58 of them. The 8 that differ are known, or anything up to 92 may."""
    made = by_hand({AVG: flat(50, 2), GROUP: flat(58, 2)})
    bits = np.zeros((2, 2, 4, 104), dtype=bool)
    for method, label in enumerate(made.settings.methods):
        for seed in range(2):
            bits[method, seed, :, : (50 if label == AVG else 58) + seed] = True
    kept = replace(made, answers=np.packbits(bits, axis=-1), answered=np.ones((2, 2, 4), dtype=bool))
    bound, exact = (compute_findings(records).methods[GROUP].gap.sources.estimated["test clients"] for records in (made, kept))
    assert bound.bound
    assert not exact.bound
    assert exact.mean == bound.mean == pytest.approx(0.08)
    # each client: 8 of 100 gained, variance (8 - 0.64) / 99 of a sample's difference, a quarter of the weight
    assert exact.error == pytest.approx((4 * (8 - 0.64) * 100 / 99 * (1 / 400) ** 2) ** 0.5)
    assert bound.width > 3 * exact.width
    assert "test clients" in compute_findings(kept).methods[GROUP].gap.sources.deciding
    assert "test clients" not in compute_findings(made).methods[GROUP].gap.sources.deciding
