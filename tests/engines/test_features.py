"""Features on disk: found again for the same body and samples, and for no others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.arrays import Floats
from coterie.engines import features
from coterie.engines.features import compute_features, get_piece_size, load_or_compute

X = np.arange(12, dtype=np.float32).reshape(4, 3)


class Counted:
    """A computation that counts how often it was made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Floats:
        self.made += 1
        return np.full((len(X), 2), self.made, dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(features, "LARGE_MODEL", 5)
    return tmp_path / "coterie" / "features"


def body(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_found_again() -> None:
    compute = Counted()
    assert load_or_compute(body(), X, "cpu", compute).tolist() == load_or_compute(body(), X.copy(), "cpu", compute).tolist()
    assert compute.made == 1


def test_another_body_other_samples_or_another_way_is_computed() -> None:
    compute, other = Counted(), X + 1
    for given in ((body(), X, "cpu"), (body(1), X, "cpu"), (body(), other, "cpu"), (body(), X, "cuda")):
        load_or_compute(*given, compute)
    assert compute.made == 4


def test_what_is_broken_is_made_anew(cache: Path) -> None:
    compute = Counted()
    load_or_compute(body(), X, "cpu", compute)
    [file] = cache.iterdir()
    file.write_bytes(b"nonsense")
    assert load_or_compute(body(), X, "cpu", compute)[0, 0] == 2
    assert np.load(file)[0, 0] == 2


def test_a_small_body_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "LARGE_MODEL", 8)
    load_or_compute(body(), X, "cpu", Counted())
    assert not cache.exists()


def test_a_small_body_on_images_leaves_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "LARGE_MODEL", 8)
    monkeypatch.setattr(features, "SMALL_SAMPLE", 2)
    load_or_compute(body(), X, "cpu", Counted())
    assert len(list(cache.iterdir())) == 1


def test_large_samples_go_through_a_body_in_smaller_pieces() -> None:
    """At 96 pixels 37 images are some million numbers; 4,096 of them would make layers of gigabytes."""
    rows, images = np.zeros((5000, 3), np.float32), np.zeros((50, 3, 96, 96), np.float32)
    assert (get_piece_size(body(), rows), get_piece_size(body(), images)) == (4096, 37)
    assert get_piece_size(body(), np.zeros((0, 3), np.float32)) == 4096
    mean = nn.Sequential(nn.Flatten(), nn.AvgPool1d(3 * 96 * 96))
    images[:, 0, 0, 0] = np.arange(50) * (3 * 96 * 96)
    np.testing.assert_allclose(compute_features(mean, images, torch.device("cpu"), "float32")[:, 0], np.arange(50), rtol=1e-5)
