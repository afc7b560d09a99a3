"""How many test images of the papers' FEMNIST somebody trains on: counted by hand on small federations, and as the summary says it."""

from pathlib import Path

import numpy as np
import pytest

from study_scripts import script

ROOT = Path(__file__).resolve().parents[2]


study = script("femnist_overlap")


def test_every_client_takes_the_first_images_of_its_letters() -> None:
    """Ten clients later the same letters come again, and the same images."""
    clients = study.taken(np.array([9.0] + [3.0] * 9 + [12.0]), classes=3, images=100)
    assert clients[0].tolist() == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    assert clients[1].tolist() == [100, 101, 200, 201, 300, 301]  # two of each at least
    assert clients[10].tolist() == [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203]


def test_only_where_a_letter_would_run_out_others_are_taken() -> None:
    """The rule as written: 3 + 97 is not below 100, so the second client goes on at image 3."""
    clients = study.taken(np.array([3.0] + [2.0] * 9 + [97.0]), classes=1, images=100)
    assert clients[0].tolist() == [0, 1, 2]
    assert clients[10].tolist() == list(range(3, 100))


def test_a_test_image_counts_once_somebody_trains_on_it() -> None:
    rng = np.random.default_rng(0)
    assert study.overlap([np.arange(10), np.arange(10, 20)], rng) == study.Overlap(20, 20, 2, 0)  # nothing is shared
    shared = study.overlap([np.arange(10)] * 40, rng)  # of 40 clients one trains on an image that another tests on
    assert (shared.samples, shared.images, shared.tests, shared.in_train) == (400, 10, 40, 40)
    assert shared.share == pytest.approx(100)


def test_the_summary_says_what_the_recipe_gives() -> None:
    """On a tenth of the draws of the summary: 96 % on average, whatever the draw most of them."""
    shares = [study.drawn(3, seed).share for seed in range(100)]
    assert np.mean(shares) == pytest.approx(96, abs=1)
    assert min(shares) > 75
    assert "96 % of the FEMNIST test images" in (ROOT / "docs" / "results" / "explanations.md").read_text()
