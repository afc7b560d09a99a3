"""What a reader is told beside the scores."""

import pytest

import coterie as ct
from coterie.analysis.caveats import collect_remarks


@pytest.mark.parametrize(
    ("method", "lr", "told"),
    [
        ("fesem(groups=2)", 3.0, "takes 60% of the way back"),  # 2 * 0.1 * 3
        ("fesem(groups=2)+rate(lr=3)", 0.1, "takes 60% of the way back"),
        ("fedprox(mu=1)", 0.5, "a weight of at most 0.2"),
        ("fesem(groups=2)", 0.1, None),
        ("fedavg", 3.0, None),
        ("moon(mu=5)", 1.0, None),  # a contrast, not a pull
    ],
)
def test_a_proximal_term_that_undoes_training_is_named(method: str, lr: float, told: str | None) -> None:
    result = ct.study(method, data="synthetic(0,0,clients=4)", rounds=1, max_steps=1, lr=lr)
    found = [remark for remark in collect_remarks(result.evidence) if "proximal" in remark]
    assert bool(found) == (told is not None)
    if told is not None:
        assert told in found[0]


def test_tune_is_an_argument(tmp_path: object) -> None:
    settings = {
        "data": "synthetic(0,0,clients=4)",
        "rounds": 1,
        "max_steps": 1,
        "draws": 2,
        "seeds": [0],
        "controls": False,
        "extensions": 0,
    }
    found = ct.compare("fedprox(mu=1)", tune=(0.01, 0.1), tuning_seeds=1, out=f"{tmp_path}/tuned", **settings)  # type: ignore[arg-type]
    assert all("+rate(lr=" in label for label in found.federations[0].methods)
