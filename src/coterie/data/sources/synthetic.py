"""The synthetic(alpha, beta) federation of the FedProx, FedSim and FedGroup papers, drawn by key.

Li et al. (2020), "Federated optimization in heterogeneous networks", Section 5.1, after Shamir et al. (2014).
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts
from coterie.data.partitions import check_count, check_fractions, make_client_ids, split_parts
from coterie.data.store import generate_arrays

DIMENSIONS = 60
CLASSES = 10
TEST = 0.1  # 90 % train


def synthetic(
    alpha: float | str = 0.0,
    beta: float = 0.0,
    clients: int = 30,
    alpha_per_class: bool = False,
    validation: float = 0.0,
    most: int | None = None,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Ten classes drawn from a linear model of each client's own; synthetic(iid) is one model for all.

    n_k = int(lognormal(4, 2)) + 50; u_k ~ N(0, sd alpha); B_k ~ N(0, sd beta); v_k ~ N(B_k, 1); W_k, b_k ~ N(u_k, 1);
    x ~ N(v_k, diag(j^-1.2)); y = argmax(W_k^T x + b_k); 90 % train.
    IID: v_k = 0 and one W, b ~ N(0, 1) for all, with the same sizes and covariance.

    **alpha never changes a label**: u_k is one number added to every entry of W_k and b_k, so it shifts all ten logits alike. Nor
    are clients alike at alpha = beta = 0: each has its own W_k and v_k. ``alpha_per_class=True`` draws u_{k,c}, a shift a class, which
    does what the papers meant.

    Every draw is keyed by the client's id: more clients leave the earlier ones as they were, and the same data seed gives paired
    draws for every alpha and beta. ``most=10`` gives no client more samples than that, the first of those that it would have: a million
    clients then fit a machine. What is larger than a GiB is drawn once into the user's cache and mapped, not read.
    """
    iid = isinstance(alpha, str)
    title = "Data set 'synthetic'"
    if iid and alpha != "iid":
        raise UserError(f"{title}: alpha={alpha!r} should be a number, or the word iid as in 'synthetic(iid)'.")
    if iid and (beta != 0 or alpha_per_class):
        raise UserError(f"{title}: synthetic(iid) is one model for all clients and has no beta or alpha_per_class.")
    spread = 0.0 if isinstance(alpha, str) else float(alpha)
    for setting, value in (("alpha", spread), ("beta", beta)):
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{title}: {setting}={value:g} is a standard deviation and should be 0 or more.")
    check_count(title, "clients", clients)
    check_fractions(title, TEST, validation)
    if most is not None and most < 2:
        raise UserError(f"{title}: most={most} should be 2 or more: a sample to train on and one to be tested on.")

    ids = make_client_ids(clients)
    sizes = [int(make_generator(make_key(_data_seed, "synthetic", "size", name)).lognormal(4, 2)) + 50 for name in ids]  # n_k
    starts = np.cumsum([0, *(size if most is None else min(size, most) for size in sizes)])

    def fill(x: Floats, y: Ints) -> None:
        for name, (begin, end) in zip(ids, pairwise(starts.tolist()), strict=True):
            model = _draw_iid_model(_data_seed) if iid else _draw_model(_data_seed, name, spread, beta, alpha_per_class)
            x[begin:end], y[begin:end] = _draw_samples(_data_seed, name, end - begin, *model)

    settings = [clients, "iid" if iid else (spread, beta, alpha_per_class), most, _data_seed]
    x, y = generate_arrays("synthetic", settings, int(starts[-1]), DIMENSIONS, fill)
    # The samples of a client are drawn independently, so their order is random already.
    train, held, tests = split_parts(Parts(starts, np.arange(starts[-1])), TEST, validation)
    at_most = "" if most is None else f",most={most}"
    return Federation(
        name=f"synthetic({'iid' if iid else f'{spread:g},{beta:g}'},clients={clients}{at_most})",
        x=x,
        y=y,
        classes=tuple(str(c) for c in range(CLASSES)),
        ids=ids,
        train=train,
        validation=held if validation > 0 else None,
        test=tests,
        data_seed=_data_seed,
        provenance={
            "source": "generated",
            "licence": "none needed",
            "citation": 'Li et al. (2020), "Federated optimization in heterogeneous networks", Section 5.1',
            "partition": "each client draws its own samples",
            "left_over": 0,
        },
    )


def _draw_model(seed: int, name: str, alpha: float, beta: float, per_class: bool) -> tuple[Doubles, Doubles]:
    """(60,) v_k, and (61, 10) W_k with b_k as its last row."""
    shifts = alpha * make_generator(make_key(seed, "synthetic", "u", name)).normal(size=CLASSES if per_class else 1)  # (10,) or (1,): u_k
    centre = beta * make_generator(make_key(seed, "synthetic", "B", name)).normal()
    mean = centre + make_generator(make_key(seed, "synthetic", "v", name)).normal(size=DIMENSIONS)
    return mean, make_generator(make_key(seed, "synthetic", "W, b", name)).normal(size=(DIMENSIONS + 1, CLASSES)) + shifts


@lru_cache(maxsize=1)
def _draw_iid_model(seed: int) -> tuple[Doubles, Doubles]:
    return np.zeros(DIMENSIONS), make_generator(make_key(seed, "synthetic", "iid", "W, b")).normal(size=(DIMENSIONS + 1, CLASSES))


def _draw_samples(seed: int, name: str, n: int, mean: Doubles, model: Doubles) -> tuple[Floats, Ints]:
    """x ~ N(mean, diag(j^-1.2)) and the label the model gives it; the last row of the model is b."""
    deviations = np.arange(1, DIMENSIONS + 1) ** -0.6  # the square root of the covariance's diagonal
    x = mean + deviations * make_generator(make_key(seed, "synthetic", "x", name)).normal(size=(n, DIMENSIONS))
    y = np.argmax(x @ model[:-1] + model[-1], axis=1)
    return x.astype(np.float32), y.astype(np.int64)
