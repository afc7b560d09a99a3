"""Styles, mixtures, overlapping groups and a continuum: every sample is changed as its distribution says, and nothing else is."""

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.data.scenarios import style
from coterie.data.sources.digits import digits
from coterie.data.ungrouped_scenarios import continuum, mixtures, overlapping


def held(made: Federation, client: int) -> Ints:
    return np.concatenate([made.train[client], made.test[client]])


def test_styles_are_those_of_their_groups_and_half_way_is_half_way() -> None:
    plain = digits()
    whole, half = style(plain, clients=8, groups=4), style(plain, clients=8, groups=4, strength=0.5)
    assert whole.groups is not None
    changed = {0: np.zeros(0), 1: np.ones(1), 2: -np.ones(1)}  # bold is never darker, thin never brighter
    for client, g in enumerate(whole.groups.tolist()):
        own = held(whole, client)
        step = whole.x[own] - plain.x[own]
        assert bool(step.any()) == (g > 0)
        if g in (1, 2):
            assert (step * changed[g] >= 0).all()
        assert half.x[own] == pytest.approx(plain.x[own] + step / 2, abs=1e-6)
        assert np.array_equal(whole.y[own], plain.y[own])


def test_bold_and_thin_are_the_extremes_of_nine_pixels() -> None:
    images = np.zeros((4, 5, 5), np.float32)
    images[:, 2, 2] = 1
    from coterie.data.scenarios import _draw_in_style

    assert _draw_in_style(images, "bold")[0].sum() == 9
    assert _draw_in_style(images, "thin").sum() == 0
    assert _draw_in_style(images, "blurred")[0].sum() == pytest.approx(1, abs=0.02)


def test_mixture_samples_turn_by_their_distribution() -> None:
    plain, made = digits(), mixtures(digits(), clients=12, groups=4, alpha=1.0)
    for client, name in enumerate(made.ids):
        own = held(made, client)
        turned = np.stack([[np.array_equal(np.rot90(plain.x[i], g), made.x[i]) for g in range(4)] for i in own])
        assert turned.any(axis=1).all()
        shares = np.array(made.provenance["mixture"][name])
        assert turned.mean(axis=0) == pytest.approx(shares, abs=0.05)  # a digit may look the same turned
        assert made.groups is not None
        assert made.groups[client] == shares.argmax()


def test_alpha_orders_mixtures_from_pure_to_equal() -> None:
    largest = [
        np.mean([max(row) for row in mixtures(digits(), clients=20, groups=3, alpha=alpha).provenance["mixture"].values()])
        for alpha in (0.01, 0.4, 100.0)
    ]
    assert largest[0] > 0.95 > largest[1] > 0.55 > largest[2]


def test_mixtures_of_labels_swap_known_pairs_only() -> None:
    plain, made = digits(), mixtures(digits(), clients=10, groups=3, change="labelswap", alpha=1.0)
    assert np.array_equal(made.x, plain.x)
    moved = {frozenset((int(a), int(b))) for a, b in zip(plain.y, made.y, strict=True) if a != b}
    assert len(moved) == 2  # a pair for each of the groups 1 and 2
    assert len(frozenset().union(*moved)) == 4


def test_half_of_an_overlapping_clients_samples_are_of_the_next_group() -> None:
    made = overlapping(digits(), clients=20, groups=4, share=0.5)
    assert made.groups is not None
    shares = np.array(list(made.provenance["mixture"].values()))
    both = (shares > 0).sum(axis=1) == 2
    assert both.sum() == 10
    for client in np.flatnonzero(both).tolist():
        g = int(made.groups[client])
        assert shares[client, [g, (g + 1) % 4]] == pytest.approx([0.5, 0.5], abs=0.03)
    assert (shares[~both].max(axis=1) == 1).all()
    assert np.array_equal(shares[~both].argmax(axis=1), made.groups[~both])


def test_continuum_has_every_angle_once_and_no_groups() -> None:
    plain, made = digits(), continuum(digits(), clients=5, degrees=360)
    assert made.groups is None
    found = [
        g
        for client in range(5)
        for g in range(4)
        if np.array_equal(np.rot90(plain.x[held(made, client)], g, (1, 2)), made.x[held(made, client)])
    ]
    assert sorted(found) == [0, 0, 1, 2, 3]  # 0, 90, 180, 270 and 360 degrees


@pytest.mark.parametrize("spec", ["style(groups=4)", "mixtures(alpha=1)", "overlapping(share=0.3)", "continuum(degrees=90)"])
def test_draws_differ_and_repeat(spec: str) -> None:
    one, again, other = (load(f"digits/iid(clients=10)/{spec}", seed) for seed in (0, 0, 1))
    assert np.array_equal(one.x, again.x)
    assert not np.array_equal(one.x, other.x)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("heart/style", "only images have a style"),
        ("digits/style(groups=5)", "groups=5 is too many"),
        ("digits/style(strength=2)", "strength=2 should be above 0 and at most 1"),
        ("digits/mixtures(alpha=0)", "alpha=0 should be above 0"),
        ("digits/mixtures(groups=7,change=labelswap)", "swap 12 classes"),
        ("heart/mixtures", "only square images can be turned; set change=labelswap"),
        ("digits/overlapping(share=2)", "share=2 should be from 0 to 1"),
        ("digits/overlapping(groups=1)", "nothing to overlap with"),
        ("heart/continuum", "only square images can be turned"),
        ("digits/continuum(degrees=0)", "degrees=0 should be at least 1"),
    ],
)
def test_what_cannot_be_made_is_refused(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(spec)
