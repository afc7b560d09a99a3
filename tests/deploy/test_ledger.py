"""Epsilon against formulas written here, and the ledger that remembers it."""

from math import comb, exp, inf, log
from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.deploy.site.ledger import ORDERS, Charge, Ledger, compute_epsilon
from coterie.deploy.site.policy import ClipNoise, DpSgd
from coterie.deploy.site.privacy import PoissonSteps, PrivateTrainer, draw_poisson_batch
from coterie.testing.worlds import SIZES, make_world

DP = DpSgd(mechanism="dp-sgd", noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=8.0)


def converted(rdp: float, order: float, delta: float) -> float:
    """Balle et al. 2020, Theorem 21: (a, r)-RDP is (r + log((a-1)/a) - (log d + log a)/(a-1), d)-DP."""
    return rdp + log((order - 1) / order) - (log(delta) + log(order)) / (order - 1)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (2.0, 10), (5.0, 300)])
def test_epsilon_of_full_batches_by_hand(noise: float, steps: int) -> None:
    """The Gaussian mechanism has RDP a/(2 s^2) at every order a, and T of them T times that."""
    by_hand = min(converted(steps * a / (2 * noise**2), a, 1e-5) for a in ORDERS)
    assert compute_epsilon([Charge("dp-sgd", noise, 1.0, steps)], 1e-5, "dp-sgd") == pytest.approx(by_hand, rel=1e-9)
    classic = min(steps * a / (2 * noise**2) + log(1e5) / (a - 1) for a in np.arange(1.01, 500, 0.01))
    assert by_hand < classic < 1.4 * by_hand  # Mironov's conversion, which is looser


def test_one_number_worked_out() -> None:
    """T = 1, s = 4, d = 1e-5. At a = 18: 18/32 = 0.5625, + log(17/18) = -0.0572, + (11.5129 - 2.8904)/17 = 0.5072: 1.0125 in all."""
    assert converted(18 / 32, 18, 1e-5) == pytest.approx(1.0125, abs=1e-4)
    assert compute_epsilon([Charge("dp-sgd", 4.0, 1.0, 1)], 1e-5, "dp-sgd") <= 1.0126


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.1, 1.5, 50), (0.5, 3.0, 20)])
def test_epsilon_of_poisson_batches_against_the_sum_over_binomials(rate: float, noise: float, steps: int) -> None:
    """Mironov, Talwar and Zhang 2019, 3.3: at whole orders log sum_i C(a,i) (1-q)^(a-i) q^i exp((i^2-i)/(2 s^2)) / (a-1)."""

    def rdp(a: int) -> float:
        return log(sum(comb(a, i) * (1 - rate) ** (a - i) * rate**i * exp((i * i - i) / (2 * noise**2)) for i in range(a + 1))) / (a - 1)

    whole = min((converted(steps * rdp(a), a, 1e-5) for a in range(2, 33)), default=inf)
    ours = compute_epsilon([Charge("dp-sgd", noise, rate, steps)], 1e-5, "dp-sgd")
    assert ours <= whole * (1 + 1e-9)
    assert ours == pytest.approx(whole, rel=0.01)  # broken orders between 2 and 5 may be a little better


def test_charges_compose_and_units_are_kept_apart() -> None:
    sgd, noise, exact = Charge("dp-sgd", 2.0, 1.0, 3), Charge("clip+noise", 2.0, 1.0, 4), Charge("exact", 0.0, 1.0, 9)
    seven = compute_epsilon([Charge("dp-sgd", 2.0, 1.0, 7)], 1e-5, "dp-sgd")
    assert compute_epsilon([sgd, noise, exact], 1e-5, "dp-sgd") == pytest.approx(seven)  # a whole update covers its samples
    assert compute_epsilon([sgd, noise, exact], 1e-5, "clip+noise") == compute_epsilon(
        [Charge("clip+noise", 2.0, 1.0, 4)], 1e-5, "clip+noise"
    )
    assert compute_epsilon([exact], 1e-5, "dp-sgd") == 0.0


def test_two_possible_updates_are_two_clips_apart() -> None:
    assert ClipNoise(mechanism="clip+noise", clip=3.0, noise=1.0).multiplier == 0.5


def test_the_sampler_is_the_one_that_the_accountant_knows() -> None:
    trainer = PrivateTrainer(make_world(), DP)
    ask = Train(np.arange(6), make_world().model.initial(0)(0), Local(epochs=2, batch_size=4))
    for plan, cost, n in zip(trainer.steps(ask), trainer.costs(ask), SIZES, strict=True):
        assert (plan.samples, plan.rate, plan.steps) == (n, min(4 / n, 1.0), cost.steps)
        assert (cost.rate, cost.noise) == (plan.rate, 1.0)
    full = PoissonSteps.of(Train(np.arange(1), make_world().model.initial(0)(0), Local(epochs=3, batch_size=None)), 0, 12)
    assert (full.rate, full.steps) == (1.0, 3)


def test_batches_are_as_large_on_average_as_the_rate_says() -> None:
    n, rate, draws = 50, 0.2, 4000
    sizes = np.array([len(draw_poisson_batch(n, rate)) for _ in range(draws)])
    assert abs(sizes.mean() - n * rate) < 5 * np.sqrt(n * rate * (1 - rate) / draws)
    assert abs(sizes.var() - n * rate * (1 - rate)) < 1.0  # independent samples, not batches of a fixed size
    assert len(draw_poisson_batch(n, 1.0)) == n


def test_the_ledger_survives_a_restart_and_stops_before_the_limit(tmp_path: Path) -> None:
    path, cost = tmp_path / "privacy.json", Charge("dp-sgd", 4.0, 1.0, 5)
    taken = 0
    while not Ledger(path).charge({"a": cost}, DP):  # a new ledger each time: a restart
        taken += 1
        assert Ledger(path).spent(DP)["a"] <= DP.epsilon_limit
    assert taken > 1
    assert Ledger(path).charges()["a"] == [Charge("dp-sgd", 4.0, 1.0, 5 * taken)]
    assert compute_epsilon([Charge("dp-sgd", 4.0, 1.0, 5 * (taken + 1))], DP.delta, "dp-sgd") > DP.epsilon_limit
    before = path.read_text()
    over = Ledger(path).charge({"a": cost, "b": cost}, DP)  # another client has its own budget
    assert set(over) == {"a"}
    assert set(Ledger(path).charges()) == {"a", "b"}
    assert path.read_text() != before
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    Ledger(path).charge({"a": Charge("dp-sgd", 4.0, 1.0, 5)}, DP)
    path.write_text(path.read_text()[:-5])
    with pytest.raises(UserError, match="what was spent is unknown"):
        Ledger(path)
