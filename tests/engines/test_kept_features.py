"""Features on disk: found again for the same body and samples, and for no others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.arrays import Floats
from coterie.engines import kept_features
from coterie.engines.features import computed, piece_for
from coterie.engines.kept_features import kept

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
    monkeypatch.setattr(kept_features, "LARGE_MODEL", 5)
    return tmp_path / "coterie" / "features"


def body(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_found_again() -> None:
    compute = Counted()
    assert kept(body(), X, "cpu", compute).tolist() == kept(body(), X.copy(), "cpu", compute).tolist()
    assert compute.made == 1


def test_another_body_other_samples_or_another_way_is_computed() -> None:
    compute, other = Counted(), X + 1
    for given in ((body(), X, "cpu"), (body(1), X, "cpu"), (body(), other, "cpu"), (body(), X, "cuda")):
        kept(*given, compute)
    assert compute.made == 4


def test_what_is_broken_is_made_anew(cache: Path) -> None:
    compute = Counted()
    kept(body(), X, "cpu", compute)
    [file] = cache.iterdir()
    file.write_bytes(b"nonsense")
    assert kept(body(), X, "cpu", compute)[0, 0] == 2
    assert np.load(file)[0, 0] == 2


def test_a_small_body_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_features, "LARGE_MODEL", 8)
    kept(body(), X, "cpu", Counted())
    assert not cache.exists()


def test_a_small_body_on_images_leaves_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_features, "LARGE_MODEL", 8)
    monkeypatch.setattr(kept_features, "SMALL_SAMPLE", 2)
    kept(body(), X, "cpu", Counted())
    assert len(list(cache.iterdir())) == 1


def test_large_samples_go_through_a_body_in_smaller_pieces() -> None:
    """At 96 pixels 37 images are some million numbers; 4,096 of them would make layers of gigabytes."""
    rows, images = np.zeros((5000, 3), np.float32), np.zeros((50, 3, 96, 96), np.float32)
    assert (piece_for(body(), rows), piece_for(body(), images)) == (4096, 37)
    assert piece_for(body(), np.zeros((0, 3), np.float32)) == 4096
    mean = nn.Sequential(nn.Flatten(), nn.AvgPool1d(3 * 96 * 96))
    images[:, 0, 0, 0] = np.arange(50) * (3 * 96 * 96)
    np.testing.assert_allclose(computed(mean, images, torch.device("cpu"), "float32")[:, 0], np.arange(50), rtol=1e-5)
