"""Which method a comparison recommends."""

from coterie.analysis.verdict import recommend
from report.made_up import view

BASE = [0.600 + 0.001 * i for i in range(6)]


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def chosen(levels: dict[str, list[float]]) -> str:
    found = recommend(view(levels).findings)
    assert found is not None
    return found.label


def test_the_baseline_where_nothing_is_ahead() -> None:
    assert chosen({"fedavg": BASE, "fedprox(mu=1)": above(0.0, 0.02)}) == "fedavg"


def test_the_best_and_the_simplest_within_half_a_point() -> None:
    assert chosen({"fedavg": BASE, "local": above(0.05), "fedsim(clusters=2)": above(0.1)}) == "fedsim(clusters=2)"
    assert chosen({"fedavg": BASE, "local": above(0.097), "fedsim(clusters=2)": above(0.1)}) == "local"


def test_a_control_is_never_recommended() -> None:
    levels = {"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.2)}
    assert chosen(levels) == "fedgroup(groups=2)"


def test_one_run_recommends_nothing() -> None:
    assert recommend(view({"fedavg": [0.6], "fedprox(mu=1)": [0.7]}).findings) is None
