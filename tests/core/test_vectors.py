"""Keyed projections: what they keep, what they depend on, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from coterie.core.rng import make_generator, make_key
from coterie.core.vectors import Sketch, _transform_rows, clip_rows, project
from coterie.testing.fakes import make_context, make_layout


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    return make_generator(make_key(seed, "rows")).normal(size=(n, d)).astype(np.float32)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 64, 128])
def test_the_turn_is_that_of_the_hadamard_matrix(length: int) -> None:
    x = rows(3, length).astype(np.float64)
    np.testing.assert_allclose(_transform_rows(x.copy()), x @ hadamard(length), atol=1e-9)


def test_two_numbers_by_hand() -> None:
    """Signs s and t of (3, 1), turned: 3s + t and 3s - t, over sqrt(2). Whatever the signs, these are 4 and 2 up to sign and order."""
    made = project(np.array([[3.0, 1.0]]), Sketch(2, 7)) * np.sqrt(2)
    assert sorted(np.abs(made[0]).round(9)) == [2.0, 4.0]


def test_inner_products_survive_within_the_bounds_of_johnson_and_lindenstrauss() -> None:
    """Over 600 keys the mean is the inner product within five standard errors, and the deviation is at most what the lemma says."""
    x, y = rows(2, 300).astype(np.float64)
    y = y + x  # so that they have something in common
    for r in (4, 32):
        pairs = [project(np.stack([x, y]), Sketch(r, make_key(k, "jl"))) for k in range(600)]
        found, true = np.array([one @ two for one, two in pairs]), x @ y
        bound = np.sqrt(((x @ x) * (y @ y) + true**2) / r)
        assert abs(found.mean() - true) < 5 * bound / np.sqrt(600)
        assert 0.5 * bound < found.std() < 1.15 * bound


def test_all_distances_of_many_clients_survive() -> None:
    vectors = rows(30, 2000)
    for k in range(5):
        made = project(vectors, Sketch(1024, k))
        short = np.linalg.norm(made[:, None] - made[None], axis=2)
        whole = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
        ratios = (short / np.where(whole > 0, whole, 1))[~np.eye(30, dtype=bool)]
        assert 0.85 < ratios.min() < ratios.max() < 1.15  # five deviations of 1/sqrt(2 * 1024) are 0.11


def test_as_many_numbers_as_there_are_lose_nothing() -> None:
    vectors = rows(4, 64)
    made = project(vectors, Sketch(64, 3))
    np.testing.assert_allclose(made @ made.T, vectors.astype(np.float64) @ vectors.T.astype(np.float64), rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 5), d=st.integers(1, 200), r=st.integers(1, 20), k=st.integers(0, 2**64 - 1))
def test_a_row_depends_on_the_key_and_itself_alone_and_sketches_are_linear(n: int, d: int, r: int, k: int) -> None:
    vectors, sketch = rows(n, d), Sketch(min(r, d), k)
    made = project(vectors, sketch)
    assert made.shape == (n, sketch.size)
    assert project(vectors[-1:], sketch).tobytes() == made[-1:].tobytes()
    assert project(vectors, Sketch(sketch.size, k, clip=1.0, noise=2.0)).tobytes() == made.tobytes()  # noise is not its affair
    origin = rows(1, d, seed=1)
    np.testing.assert_allclose(project(vectors, sketch, origin), made - project(origin, sketch), atol=1e-5)
    shorter = Sketch(1, k)
    np.testing.assert_allclose(project(vectors, shorter)[:, 0], made[:, 0] * np.sqrt(sketch.size), rtol=1e-9)  # of the same directions


def test_other_keys_project_otherwise() -> None:
    vectors = rows(1, 500)
    one, other = (project(vectors, Sketch(16, k))[0] for k in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.9
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "said", [{"size": 0}, {"size": 4, "noise": 1.0}, {"size": 4, "clip": 0.0}, {"size": 4, "clip": 1.0, "noise": -1.0}]
)
def test_what_is_no_sketch_is_refused(said: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a sketch has"):
        Sketch(key=0, **said)  # type: ignore[arg-type]


def test_more_numbers_than_there_are_places_for_are_refused() -> None:
    with pytest.raises(ValueError, match="5 numbers cannot be sketched by 9"):
        project(rows(1, 5), Sketch(9, 0))


def test_a_run_has_one_projection_for_all_its_rounds() -> None:
    first, later, other = (make_context([1], 100, seed=seed, round_=round_).sketch(8) for seed, round_ in ((0, 1), (0, 9), (1, 1)))
    assert first == later == Sketch(8, make_key(0, "sketch"))
    assert other is not None
    assert other.key != make_key(0, "sketch")


def test_what_is_as_long_as_the_whole_is_no_sketch_unless_it_is_noised() -> None:
    ctx = make_context([1], make_layout((10, "weight"), (5, "statistic")))
    assert ctx.sketch(None) is ctx.sketch(10) is ctx.sketch(99) is None
    assert ctx.sketch(9) == Sketch(9, make_key(0, "sketch"))
    assert ctx.sketch(99, 1.0, 0.5) == Sketch(10, make_key(0, "sketch"), 1.0, 0.5)


def test_clipping_keeps_directions() -> None:
    made = clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    np.testing.assert_allclose(made, [[0.6, 0.8], [0.3, 0.4]])
