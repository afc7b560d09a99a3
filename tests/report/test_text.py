"""The verdict in plain words: every case, from accuracies that force it."""

import numpy as np
import pytest

from coterie.report.text import cards, headline
from report.made_up import subject

SEEDS = 6
BASE = [0.600 + 0.001 * i for i in range(SEEDS)]


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def test_a_clear_gain_is_told_with_its_numbers_its_losers_and_its_origin() -> None:
    found = subject(
        {"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.0)},
        losses={"fedgroup(groups=2)": 0.3},
    )
    # client 0 has 0.1 - 0.3 = -0.2 of gain, the other five 0.1: 0.05 on average
    assert headline(found) == "FedGroup does best: 5.0 more right answers in 100 than FedAvg."
    (card,) = cards(found)
    assert (card.name, card.outcome, card.tag) == ("FedGroup", "better", "Better than FedAvg")
    assert card.sentences[0].startswith("Clients whose first training pulls in the same direction form a group")
    assert card.sentences[1] == "Of 100 answers, 65.2 are right; with FedAvg, 60.2."
    assert card.sentences[2] == "Repeated on this one split of the data, the difference lies between +4.8 and +5.2 points (6 repetitions)."
    assert card.sentences[4] == "Chance does not explain it."
    assert "1 of 6 clients scores lower than with FedAvg, by 20.0 points." in card.sentences
    assert "Groups of the same sizes drawn by lot change nothing: the gain comes from putting similar clients together." in card.sentences


def test_a_gain_that_random_groups_have_too_is_not_from_similarity() -> None:
    found = subject({"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.1, 0.002)})
    said = " ".join(cards(found)[0].sentences)
    assert "drawn by lot gain 10.0 points: the gain is not shown to come from putting similar clients together." in said
    assert "No client scores lower than with FedAvg." in said


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (0.2, "FedSim is better than FedAvg, but something simpler is better still: training alone."),
        (0.1, "FedSim is better than FedAvg, but not clearly better than something simpler: training alone."),
        (0.0, "FedSim does best: 10.0 more right answers in 100 than FedAvg."),
    ],
)
def test_a_method_is_only_best_where_simpler_things_are_not(alone: float, words: str) -> None:
    levels = above(alone, jitter=0.0)
    levels[0], levels[1] = levels[0] + 0.004, levels[1] - 0.004
    found = subject({"fedavg": BASE, "local": levels, "fedsim(clusters=2)": above(0.1)})
    assert headline(found) == words


def test_methods_that_cannot_be_told_apart_share_the_first_place() -> None:
    found = subject({"fedavg": BASE, "fedprox(mu=1)": above(0.1, 0.004), "fedsim(clusters=2)": above(0.1, -0.004)})
    assert headline(found) == "FedProx and FedSim do best: up to 10.0 more right answers in 100 than FedAvg."


def test_clients_that_would_do_better_alone_are_counted() -> None:
    found = subject({"fedavg": BASE, "local": above(0.0), "fedsim(clusters=2)": above(0.1)}, losses={"fedsim(clusters=2)": 0.3})
    assert "1 of 6 clients scores lower than alone." in cards(found)[0].sentences


def test_a_loss_and_no_difference_are_told_apart() -> None:
    found = subject({"fedavg": BASE, "fedprox(mu=1)": above(-0.1), "fedsim(clusters=2)": above(0.0, 0.02)})
    assert [card.outcome for card in cards(found)] == ["worse", "unclear"]
    assert headline(found) == "No method that was compared is shown to be better than FedAvg."
    assert "the difference lies between −" in cards(found)[1].sentences[2]
    assert "The difference may be chance." in cards(found)[1].sentences


def test_no_difference_at_all_is_said_plainly() -> None:
    assert "The difference is less than 0.1 points." in cards(subject({"fedavg": BASE, "fedprox(mu=1)": BASE}))[0].sentences


def test_too_few_seeds_are_named_with_the_number_that_would_do() -> None:
    # Wilcoxon's least p is 2 ** -5 = 0.031; corrected for two methods 0.0625. With 6 seeds it is 0.031. Gain: 0.12 - 0.002 * 0.5.
    few = {
        label: levels[:5]
        for label, levels in {"fedavg": BASE, "fedprox(mu=1)": above(0.12, 0.002), "fedsim(clusters=2)": above(0.1)}.items()
    }
    card = cards(subject(few))[0]
    assert card.outcome == "unproven"
    assert (
        card.sentences[2]
        == "It did better in 5 of 5 repetitions, by 11.9 points on average. With 2 methods tested, proof takes at least 6 repetitions."
    )
    assert headline(subject(few)) == "Some methods look better than FedAvg, but the study is too small to prove it."
    assert cards(subject({"fedavg": BASE, "fedprox(mu=1)": above(0.1), "fedsim(clusters=2)": above(0.1)}))[0].outcome == "better"


def test_one_seed_cannot_judge() -> None:
    found = subject({"fedavg": [0.6], "fedprox(mu=1)": [0.7]})
    assert cards(found)[0].outcome == "unjudged"
    assert "single repetition" in cards(found)[0].sentences[1]
    assert headline(found) == "This study cannot say which method is better: it takes several repetitions."


def test_a_study_of_baselines_has_no_verdict() -> None:
    assert headline(subject({"fedavg": BASE, "local": above(0.1)})) == "Nothing was compared: the study holds baselines only."


def test_the_words_need_no_dictionary() -> None:
    found = subject({"fedavg": BASE, "local": above(0.2), "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.0)})
    said = " ".join([headline(found), *(sentence for card in cards(found) for sentence in card.sentences)]).lower()
    assert not any(word in said for word in ("wilcoxon", "p =", "p <", "rand index", "interval", "seed", "federation", "nan"))
    assert np.all([len(sentence) < 160 for card in cards(found) for sentence in card.sentences])
