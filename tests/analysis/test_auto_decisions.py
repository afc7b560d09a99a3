"""What `auto` decided, in words and as a table."""

from typing import Any

import pytest

import coterie as ct
from coterie.analysis.auto_decisions import (
    AutoDecision,
    describe_decision,
    make_decision_table,
    read_decisions,
    summarize_decisions,
)


def option(name: str, score: float, gain: float, clients: int, p: float = 0.01) -> dict[str, Any]:
    return {"option": name, "score": score, "gain": gain, "error": 0.01, "p": p, "clients": clients}


def make_decision(*options: dict[str, Any], chosen: int = 1, worst: float = 0.0, draw: int = 0) -> AutoDecision:
    led = options[chosen]
    interval = {"low": led["gain"] - 0.02, "high": led["gain"] + 0.02}
    values = {"round": 5, "options": list(options), "chosen": led["option"], "gain": led["gain"], "p": led["p"], **interval}
    return AutoDecision(draw, "auto", 0, {**values, "judged_clients": 40, "judged_samples": 400, "expected_worst": worst})


COMMON = option("fedavg", 0.70, 0.0, 9, p=1.0)
GROUPS = option("structured+finetune(epochs=5)", 0.741, 0.041, 31)


def test_who_is_served_what_and_what_is_expected() -> None:
    assert describe_decision(make_decision(COMMON, GROUPS, worst=-0.004)) == (
        "auto serves 31 clients the model of their group, fine-tuned for 5 epochs; 9 clients the common model. Cross-fitted gain of "
        "structured+finetune(epochs=5): +4.1 points (95 % CI +2.1 to +6.1); the largest expected loss of a client is 0.4 points."
    )
    assert describe_decision(make_decision(COMMON, GROUPS, worst=0.01)).endswith("(95 % CI +2.1 to +6.1); no client is expected to lose.")


def test_p_is_that_of_the_best_of_all_options() -> None:
    decision = make_decision(COMMON, GROUPS, worst=0.01)
    known = AutoDecision(0, "auto", 0, {**decision.values, "p_adjusted": 0.034})
    assert "(95 % CI +2.1 to +6.1, p 0.03 as the best of 2 options); no client" in describe_decision(known)


def test_arms_that_were_not_considered_are_named() -> None:
    decision = make_decision(COMMON, GROUPS)
    known = AutoDecision(0, "auto", 0, {**decision.values, "left_out": ["continuum", "local"]})
    assert describe_decision(known) == (
        f"{describe_decision(decision)} Not considered, since clients are too few, too many or may not answer: continuum, local."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "a model trained alone"),
        ("continuum", "a weighted mean of their own"),
        ("fedprox", "the common model"),
        ("fedavg+finetune(epochs=1)", "the common model, fine-tuned for 1 epoch"),
    ],
)
def test_options_in_words(name: str, words: str) -> None:
    assert f"serves 3 clients {words}." in describe_decision(make_decision(option("fedavg", 0.7, 0, 0), option(name, 0.8, 0.1, 3)))


def test_where_nothing_is_admitted_the_best_other_option_is_named() -> None:
    tested = option("local", 0.704, 0.004, 0, p=0.31), option("continuum", 0.65, -0.05, 0, p=0.9)
    decision = make_decision({**COMMON, "clients": 40}, *tested, chosen=0)
    assert describe_decision(decision) == (
        "auto serves all clients the common model. The best other option, local, gains +0.4 points (p 0.31)."
    )


def test_several_runs_are_summed_up_by_option() -> None:
    second = make_decision(option("fedavg", 0.72, 0, 40), option("structured+finetune(epochs=5)", 0.73, 0.01, 0), chosen=0, draw=1)
    table = make_decision_table([make_decision(COMMON, GROUPS), second])
    assert table.index.tolist() == ["structured+finetune(epochs=5)", "fedavg"]  # the best first
    assert table["chosen"].tolist() == [1, 1]
    assert table["runs"].tolist() == [2, 2]
    assert table.loc["fedavg", "score"] == pytest.approx(0.71)
    assert table.loc["structured+finetune(epochs=5)", "gain"] == pytest.approx(0.0255)
    assert table.loc["structured+finetune(epochs=5)", "low"] == pytest.approx(0.0255 - 1.96 * 0.01)
    assert table.loc["fedavg", "p"] == pytest.approx((1.0 + 0.01) / 2)  # the median of two
    assert table.loc["fedavg", "clients"] == pytest.approx(24.5)


def test_decisions_are_read_from_the_evidence() -> None:
    result = ct.study(
        ["fedavg", "auto", "auto(level=1e-200,harm=0)"],
        data="digits/rotated(clients=12,groups=2)",
        model="mclr",
        rounds=6,
        lr=0.1,
        seeds=[0, 1],
    )
    found = read_decisions(result.evidence)
    assert sorted((decision.method, decision.seed) for decision in found) == [
        ("auto", 0),
        ("auto", 1),
        ("auto(level=1e-200,harm=0)", 0),
        ("auto(level=1e-200,harm=0)", 1),
    ]
    for decision in found:
        assert sum(decision.served.values()) == 12
        assert decision.values["judged_clients"] == 12
    first, second = summarize_decisions(result.evidence)
    assert first.startswith("auto chose structured")
    assert second.startswith("auto(level=1e-200,harm=0) chose fedavg in 2 of 2 runs; cross-fitted gain +0.0 points on average. Last: ")
    assert summarize_decisions(ct.study("fedavg", data="synthetic(0,0,clients=4)", rounds=1).evidence) == []
