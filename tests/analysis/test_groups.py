"""How good groups are, on records written by hand."""

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from analysis.made_records import AVG, GROUP, by_hand, flat
from coterie.analysis.findings import compute_findings
from coterie.analysis.groups import compute_group_agreement
from coterie.analysis.metrics import adjusted_rand_scores, normalized_mutual_info_scores
from coterie.analysis.records import Records
from coterie.analysis.scores import compute_scores, find_scope
from coterie.analysis.verdict import write_verdicts
from coterie.core.arrays import Ids
from coterie.core.method import Choice, Notes
from coterie.evidence import Evidence
from coterie.evidence.folder import MemorySource
from coterie.evidence.records import LaneKey, RoundRecord
from coterie.evidence.tables import make_tables


def test_groups_are_judged() -> None:
    true, collapsed, other = np.array([0, 1, 0, 1]), np.zeros(4, int), np.array([0, 0, 1, 1])
    lanes = np.stack([np.stack([other, true, true]), np.stack([collapsed] * 3), np.stack([true, other, true])])
    quality = compute_findings(by_hand({AVG: flat(50, 3), GROUP: flat(60, 3)}, {GROUP: lanes})).methods[GROUP].group_quality
    assert quality is not None
    assert quality.ari is not None
    assert quality.ari.values == pytest.approx([1, 0, 1])
    assert quality.collapse_rate == pytest.approx(1 / 3)
    assert quality.used.mean == pytest.approx(5 / 3)
    cross = adjusted_rand_score(true, other)
    assert quality.between_rounds == pytest.approx((cross + 1 + 1 + 1 + cross + cross) / 6)
    assert quality.between_seeds == pytest.approx((0 + 1 + 0) / 3)
    assert compute_findings(by_hand({AVG: flat(50)})).methods[AVG].group_quality is None


groupings = st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n)] * 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(groupings, max_size=6), st.integers(1, 60))
def test_indices_of_many_pairs_are_scikit_learns_of_each(lists: list[tuple[list[int], list[int]]], together: int) -> None:
    pairs = [(np.array(one), np.array(two)) for one, two in lists]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.analysis.metrics.BATCH_CELLS", together)  # however they are taken together
        rand, information = adjusted_rand_scores(pairs), normalized_mutual_info_scores(pairs)
    assert rand.tolist() == pytest.approx([adjusted_rand_score(*pair) for pair in pairs])
    assert information.tolist() == pytest.approx([normalized_mutual_info_score(*pair) for pair in pairs], abs=1e-9)


def test_clients_that_are_in_no_group_are_left_out_of_an_index() -> None:
    for score in (adjusted_rand_scores, normalized_mutual_info_scores):
        found = score([(np.array([0, 1, -1]), np.array([1, 0, 1])), (np.array([-1, 0]), np.array([0, -1]))])
        assert found[0] == pytest.approx(1)
        assert isnan(found[1])


def with_choices(label: str, lanes: Ids, chosen: list[int | None]) -> Records:
    """Records whose evidence holds the number of groups that each seed chose."""
    made = by_hand({AVG: flat(50, len(lanes)), label: flat(60, len(lanes))}, {label: lanes})
    keys = [LaneKey(0, label, seed) for seed in range(len(lanes))]
    notes = [Notes(choice=None if k is None else Choice(k, "gap")) for k in chosen]
    tables = make_tables([RoundRecord(key, 0, notes=own) for key, own in zip(keys, notes, strict=True)], 2)
    return replace(made, evidence=Evidence(made.settings, {}, MemorySource({name: [table] for name, table in tables.items()})))


def test_one_group_that_was_found_is_no_collapse() -> None:
    """Of four seeds with auto: one group found, two found and kept, two found and one left, no number noted (CFL never splits)."""
    one, two = np.zeros(4, int), np.array([0, 1, 0, 1])
    lanes = np.stack([np.stack([own] * 3) for own in (one, two, one, one)])
    found = compute_findings(with_choices("ifca(groups=auto)", lanes, [1, 2, 2, None]))
    quality = found.methods["ifca(groups=auto)"].group_quality
    assert quality is not None
    assert (quality.collapse_rate, quality.one_group_rate) == (0.25, 0.75)
    said = write_verdicts(found)[-1]
    assert "In 25 % of the runs groups collapse. In 75 % of the runs it found one group: one model for all clients." in said
    always = compute_findings(with_choices("ifca(groups=auto)", lanes[[0, 0]], [1, 1]))
    assert "collapse" not in write_verdicts(always)[-1]


def test_clients_in_no_group_are_not_a_group() -> None:
    # Six clients of two true groups, three of them placed, and rightly so; taking -1 for a third group would find disagreement.
    placed = np.array([0, 1, 0, -1, -1, -1])
    assert adjusted_rand_score(np.arange(6) % 2, placed) < 0.5
    lanes = np.tile(placed, (2, 3, 1))
    records = by_hand({AVG: flat(50, 2, clients=6), GROUP: flat(60, 2, clients=6)}, {GROUP: lanes})
    quality = compute_findings(records).methods[GROUP].group_quality
    assert quality is not None
    assert quality.ari is not None
    assert quality.ari.values.tolist() == [1, 1]
    assert quality.used.mean == 2
    assert quality.collapse_rate == 0
    assert compute_scores(records, find_scope(records), 1)["ari"].tolist() == [1, 1]


def test_a_seed_in_which_nobody_was_placed_is_left_out_of_the_others() -> None:
    lanes = np.tile(np.arange(4) % 2, (2, 3, 1))
    lanes[1] = -1
    quality = compute_findings(by_hand({AVG: flat(50, 2), GROUP: flat(60, 2)}, {GROUP: lanes})).methods[GROUP].group_quality
    assert quality is not None
    assert quality.ari is not None
    assert quality.ari.values.tolist() == pytest.approx([1, np.nan], nan_ok=True)
    assert (quality.used.mean, quality.collapse_rate) == (2, 0)


def test_before_anybody_is_placed_there_is_nothing_to_agree_with() -> None:
    records = by_hand({AVG: flat(50, 2), GROUP: flat(60, 2)}, {GROUP: np.full((2, 3, 4), -1)})
    assert compute_findings(records).methods[GROUP].group_quality is None
    assert np.isnan(compute_scores(records, find_scope(records), 1)["ari"]).all()


def test_seeds_and_draws_by_hand() -> None:
    # Two draws of two seeds. In draw 0 both seeds agree (names do not matter); in draw 1 they cross: no pair is together in both. With four
    # clients in pairs: together 0, expected 2 * 2 / 6, most 2, so (0 - 2/3) / (2 - 2/3) = -1/2.
    labels = np.array([[[0, 0, 1, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [0, 1, 0, 1]]])
    found = compute_group_agreement(labels, same_clients=True)
    assert found.between_seeds == pytest.approx((1 - 0.5) / 2)
    assert found.between_draws == pytest.approx((1 - 0.5 + 1 - 0.5) / 4)
    assert isnan(compute_group_agreement(labels, same_clients=False).between_draws)


def test_one_run_agrees_with_nobody() -> None:
    found = compute_group_agreement(np.array([[[0, 1, 1]]]), same_clients=True)
    assert isnan(found.between_seeds)
    assert isnan(found.between_draws)


def test_clients_in_no_group_do_not_count() -> None:
    labels = np.array([[[0, 0, 1, -1]], [[1, 1, 0, 0]], [[-1, -1, -1, -1]]])
    assert compute_group_agreement(labels, same_clients=True).between_draws == 1


def test_a_draw_without_groups_stands_beside_one_with_them() -> None:
    """As of auto, which groups in one draw and not in another."""
    right = {AVG: flat(50, seeds=2, rounds=3), GROUP: flat(60, seeds=2, rounds=3)}
    grouped = by_hand(right, {GROUP: np.tile(np.arange(4) % 2, (2, 4, 1))})
    draws = [replace(made, settings=replace(made.settings, draws=(i,), own_seeds=True)) for i, made in enumerate([grouped, by_hand(right)])]
    for order in (draws, draws[::-1]):
        quality = compute_findings(order).methods[GROUP].group_quality
        assert quality is not None
        assert quality.used.mean == 2
        assert quality.between_rounds == 1
