"""Random changes of images: what each does, and that it is keyed."""

import numpy as np
import pytest
import torch

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.local import Augmentation, Local, parse_augmentation
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.workspace import augment_images, draw_augmentation
from coterie.engines.world import World, check_fit
from coterie.testing import worlds
from models.test_image_networks import images

PICTURE = torch.arange(12.0).reshape(1, 1, 3, 4)
HALF = torch.full((1, 7), 0.5)


def drawn(**places: float) -> torch.Tensor:
    """Draws in the middle of everything, but for some."""
    names = ["flip", "down", "right", "bright", "contrast", "saturation", "angle"]
    return torch.tensor([[places.get(name, 0.5) for name in names]])


def test_flip() -> None:
    assert torch.equal(augment_images(PICTURE, drawn(flip=0.2), Augmentation(flip=True)), PICTURE.flip(-1))
    assert torch.equal(augment_images(PICTURE, drawn(flip=0.7), Augmentation(flip=True)), PICTURE)


def test_crop_moves_by_whole_pixels_and_lets_zeros_in() -> None:
    how = Augmentation(crop=1)  # corners 0, 1, 2 of the padded image; 1 is the image itself
    assert torch.equal(augment_images(PICTURE, drawn(), how), PICTURE)
    down = augment_images(PICTURE, drawn(down=0.0, right=0.99), how)[0, 0]
    assert down.tolist() == [[0, 0, 0, 0], [1, 2, 3, 0], [5, 6, 7, 0]]


def test_jitter_by_hand() -> None:
    how = Augmentation(jitter=0.5)
    assert torch.allclose(augment_images(PICTURE, drawn(), how), PICTURE, atol=1e-5)
    assert torch.allclose(augment_images(PICTURE, drawn(bright=1.0), how), 1.5 * PICTURE, atol=1e-5)
    assert torch.allclose(
        augment_images(PICTURE, drawn(contrast=0.0), how), 5.5 + 0.5 * (PICTURE - 5.5), atol=1e-5
    )  # the mean of 0..11 is 5.5
    colours = torch.tensor([1.0, 2.0, 6.0]).reshape(1, 3, 1, 1)
    found = augment_images(colours, drawn(saturation=0.0), how).flatten()
    assert found.tolist() == pytest.approx([2.0, 2.5, 4.5])  # halfway to 3


def test_rotation_by_quarters() -> None:
    square = torch.arange(9.0).reshape(1, 1, 3, 3)
    found = augment_images(square, drawn(angle=1.0), Augmentation(rotate=90.0))
    assert any(torch.allclose(found[0, 0], torch.rot90(square[0, 0], k), atol=1e-4) for k in (1, 3))
    wide = augment_images(PICTURE, drawn(angle=1.0), Augmentation(rotate=180.0))
    assert torch.allclose(wide[0, 0], torch.rot90(PICTURE[0, 0], 2), atol=1e-4)


def test_grey_images_may_leave_out_their_channel() -> None:
    how, draws = Augmentation(flip=True, crop=2, jitter=0.2, rotate=10.0), torch.rand(2, 7)
    x = torch.rand(2, 5, 5)
    assert torch.equal(augment_images(x, draws, how), augment_images(x[:, None], draws, how)[:, 0])


def test_draws_are_keyed_and_even() -> None:
    assert draw_augmentation(5, 0, 4).tobytes() == draw_augmentation(5, 0, 4).tobytes()
    assert draw_augmentation(5, 1, 4).tobytes() != draw_augmentation(5, 0, 4).tobytes() != draw_augmentation(6, 0, 4).tobytes()
    many = draw_augmentation(5, 0, 4000)
    assert many.shape == (4000, 7)
    np.testing.assert_allclose(many.mean(0), 0.5, atol=0.03)


def test_training_is_keyed_whatever_the_engine() -> None:
    world = World.from_spec(images(), "cnn")
    start = world.model.initial(0)()
    ask = Train(np.arange(2), start, Local(lr=0.1, augment="flip+crop(1)"))

    def trained(engine: LoopEngine | BatchedEngine, ask: Train, seed: int = 0) -> bytes:
        [found] = engine.run([StampedAsk(ask, seed=seed, round_=1)])
        vectors: bytes = found.vectors.tobytes()
        return vectors

    with LoopEngine(world, threads=1) as loop, BatchedEngine(world) as batched:
        assert trained(loop, ask) == trained(batched, ask) == trained(loop, ask)
        assert batched.routes() == {"cnn with sgd, augmented by flip+crop(1)": "loop: autograd"}
        plain = Train(np.arange(2), start, Local(lr=0.1))
        assert trained(loop, plain) != trained(loop, ask)
        assert trained(batched, plain) == trained(loop, plain)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("flop", "Augmentation 'flop' is not known: did you mean 'flip'"),
        ("flip(3)", "write each once"),
        ("crop(2)+crop(3)", "write each once"),
        ("crop(1.5)", r"crop\(1.5\) should be a whole number above 0"),
        ("jitter(2)", r"jitter\(2\) should be a number above 0 and at most 1"),
    ],
)
def test_errors(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Local(augment=text)


def test_settings() -> None:
    assert parse_augmentation("flip+crop+jitter(0.1)+rotate") == Augmentation(flip=True, crop=4, jitter=0.1, rotate=15.0)
    assert parse_augmentation(None) is None


def test_only_images_are_augmented() -> None:
    with pytest.raises(UserError, match=r"Augmentation is for images, and samples of 'tiny' have the shape \(5,\)"):
        check_fit(worlds.make_world(), 5, augments=True)
