"""The verdict in plain words: every case, from accuracies that force it."""

import numpy as np
import pytest

from coterie.report.verdict_text import write_advice, write_cards, write_headline
from report.made_up import view

SEEDS = 6
BASE = [0.600 + 0.001 * i for i in range(SEEDS)]


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def test_a_clear_gain_is_told_with_its_numbers_its_losers_and_its_origin() -> None:
    found = view(
        {"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.0)},
        losses={"fedgroup(groups=2)": 0.3},
    )
    # client 0 has 0.1 - 0.3 = -0.2 of gain, the other five 0.1: 0.05 on average
    assert write_headline(found) == "FedGroup does best: 5.0 points more accuracy than FedAvg."
    (card,) = write_cards(found)
    assert (card.name, card.outcome, card.tag) == ("FedGroup", "better", "Better than FedAvg")
    level = (
        "Accuracy is 65.2 %, 60.2 % with FedAvg: +5.0 points. That is the mean of rounds 1 to 2; after the last round, 65.2 % and 60.2 %."
    )
    assert card.sentences[0] == level
    sure = "With 95 % confidence the difference lies between +4.8 and +5.2 points (6 runs), the widest range over further runs"
    assert card.sentences[1].startswith(f"{sure} on this one split of the data (+4.8 to +5.2) and other samples of these clients (")
    assert card.sentences[2] == "The difference is significant."
    assert card.sentences[3].startswith("By client, in points (test samples): client 1 +10.0 (10,000), client 2")
    assert card.sentences[3].endswith("client 0 −20.0 (10,000).")
    assert "Random groups of the same sizes change nothing: grouping similar clients makes all of the gain." in card.sentences
    assert card.sentences[-1].startswith("Clients whose first training pulls in the same direction form a group")


def test_a_gain_that_random_groups_have_too_is_not_from_similarity() -> None:
    found = view({"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.1, 0.002)})
    said = " ".join(write_cards(found)[0].sentences)
    assert "sizes gain 10.0 points: the gain is not attributable to similarity." in said
    assert "No client scores lower than with FedAvg." in said


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (0.2, "FedSim is better than FedAvg, but a simpler method is better still: training alone."),
        (0.1, "FedSim is better than FedAvg, but not significantly better than a simpler method: training alone."),
        (0.0, "FedSim does best: 10.0 points more accuracy than FedAvg."),
    ],
)
def test_a_method_is_only_best_where_simpler_things_are_not(alone: float, words: str) -> None:
    levels = above(alone, jitter=0.0)
    levels[0], levels[1] = levels[0] + 0.004, levels[1] - 0.004
    found = view({"fedavg": BASE, "local": levels, "fedsim(clusters=2)": above(0.1)})
    assert write_headline(found) == words


def test_methods_that_cannot_be_told_apart_share_the_first_place() -> None:
    found = view({"fedavg": BASE, "fedprox(mu=1)": above(0.1, 0.004), "fedsim(clusters=2)": above(0.1, -0.004)})
    assert write_headline(found) == "FedProx and FedSim do best: up to 10.0 points more accuracy than FedAvg."


def test_clients_that_would_do_better_alone_are_counted() -> None:
    found = view({"fedavg": BASE, "local": above(0.0), "fedsim(clusters=2)": above(0.1)}, losses={"fedsim(clusters=2)": 0.3})
    said = "Against training alone +5.0 points (+4.8 to +5.2): better; 17 % of clients score lower than alone."
    assert said.replace("+4.8 to +5.2", "+5.0 to +5.0") in write_cards(found)[0].sentences
    alone = write_cards(found)[1]
    assert (alone.name, alone.tag) == ("Training alone", "Simpler, for comparison. Equivalent to FedAvg: within 1.0 points")


def test_a_loss_and_no_difference_are_told_apart() -> None:
    found = view({"fedavg": BASE, "fedprox(mu=1)": above(-0.1), "fedsim(clusters=2)": above(0.0, 0.02)})
    assert [card.outcome for card in write_cards(found)] == ["worse", "unclear"]
    assert write_cards(found)[1].tag.startswith("Inconclusive: between ")
    assert write_headline(found) == "No method is significantly better than FedAvg."
    assert "the difference lies between −" in write_cards(found)[1].sentences[1]
    assert "The difference is not significant." in write_cards(found)[1].sentences


def test_no_difference_at_all_is_said_plainly() -> None:
    assert "The difference is less than 0.1 points." in write_cards(view({"fedavg": BASE, "fedprox(mu=1)": BASE}))[0].sentences


def test_too_few_seeds_are_named_with_the_number_that_would_do() -> None:
    # Four seeds are too few for any test. Gain: 0.12 - 0.002 * 1.
    few = {
        label: levels[:4]
        for label, levels in {"fedavg": BASE, "fedprox(mu=1)": above(0.12, 0.002), "fedsim(clusters=2)": above(0.1)}.items()
    }
    card = write_cards(view(few))[0]
    assert card.outcome == "unproven"
    assert card.sentences[1].startswith("It did better in 4 of 4 repetitions, by 11.8 points on average; with 95 % confidence the")
    assert card.sentences[1].endswith(", which excludes 0.")
    assert card.sentences[2] == "4 repetitions are too few for the test of 2 methods: run 7."
    assert not any("chance" in sentence for sentence in (*card.sentences, *write_advice(view(few))))
    assert write_advice(view(few))[0].startswith("Run more repetitions before you decide")
    assert "4 repetitions are too few for the test, and the 95 % confidence range excludes 0" in write_advice(view(few))[1]
    assert write_headline(view(few)) == "Some methods look better than FedAvg, but the study is too small for a significant result."
    assert write_cards(view({"fedavg": BASE, "fedprox(mu=1)": above(0.1), "fedsim(clusters=2)": above(0.1)}))[0].outcome == "better"


@pytest.mark.parametrize(
    ("random", "words"),
    [
        (-0.128, "lose 12.8 points: grouping similar clients makes all of the gain and more, +22.8 points over random groups."),
        (0.02, "sizes gain 2.0 points: grouping similar clients makes 8.0 of the 10.0 points."),
        (0.08, "sizes gain 8.0 points: grouping similar clients makes only 2.0 of the 10.0 points."),
        (0.13, "gain 13.0 points, more than similar ones: the gain comes from having groups, and grouping similar clients costs 3.0."),
    ],
)
def test_no_share_of_a_gain_is_above_the_whole(random: float, words: str) -> None:
    found = view({"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(random, 0.0011)})
    assert any(sentence.endswith(words) for sentence in write_cards(found)[0].sentences)


def test_a_range_above_zero_is_never_called_chance() -> None:
    """Seven seeds and four methods, one seed against the best: significant but for the correction."""
    base = [0.6 + 0.001 * i for i in range(7)]
    ahead = [level + gain for level, gain in zip(base, (-0.022, 0.03, 0.01, 0.04, 0.02, 0.05, 0.03), strict=True)]
    found = view({"fedavg": base, "fedprox(mu=1)": ahead, **{f"fedprox(mu={mu})": base for mu in (2, 3, 4)}})
    card = write_cards(found)[0]
    assert (card.outcome, found.findings.methods["fedprox(mu=1)"].gap.low > 0) == ("unclear", True)
    assert (
        "All of these ranges exclude 0, but the difference is not significant after correction for the number of methods." in card.sentences
    )
    assert write_advice(found)[1].endswith("the 95 % confidence range excludes 0, but it is not significant among so many methods.")


def test_one_seed_cannot_judge() -> None:
    found = view({"fedavg": [0.6], "fedprox(mu=1)": [0.7]})
    assert write_cards(found)[0].outcome == "unjudged"
    assert "single repetition" in write_cards(found)[0].sentences[0]
    assert write_headline(found) == "This study cannot show which method is better: it needs several repetitions."


def test_a_study_of_baselines_has_no_verdict() -> None:
    assert write_headline(view({"fedavg": BASE, "local": above(0.1)})) == "Nothing was compared: the study holds baselines only."


def test_the_words_need_no_dictionary() -> None:
    found = view({"fedavg": BASE, "local": above(0.2), "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.0)})
    said = " ".join([write_headline(found), *(sentence for card in write_cards(found) for sentence in card.sentences)]).lower()
    assert not any(word in said for word in ("wilcoxon", "p =", "p <", "rand index", "interval", "seed", "federation", " nan"))
    assert np.all([len(sentence) < 260 for card in write_cards(found) for sentence in card.sentences])


def test_advice_begins_with_what_is_simpler_where_that_does_as_well() -> None:
    levels = above(0.1, jitter=0.0)
    levels[0], levels[1] = levels[0] + 0.004, levels[1] - 0.004
    found = view({"fedavg": BASE, "local": levels, "fedsim(clusters=2)": above(0.1005)})
    said = write_advice(found)
    assert said[0].startswith(
        "Start with training alone (70.2 % accuracy), which is simpler: FedSim (70.3 % accuracy) is too little ahead of it to matter"
    )
    assert "this study has one split and does not estimate the results of another" in said[1]


def test_advice_names_the_method_and_who_should_keep_the_baseline() -> None:
    found = view(
        {"fedavg": BASE, "fedgroup(groups=2)": above(0.1), "fedgroup(groups=2,assign=random)": above(0.0)},
        losses={"fedgroup(groups=2)": 0.3},
        groups={"fedgroup(groups=2)": np.array([0, 0, 0, 1, 1, 1])},
    )
    said = write_advice(found)
    assert said[0].startswith("Use FedGroup (65.2 % accuracy): each client gets its group's model")
    assert said[1] == "Except for client 0: FedAvg serves them significantly better; let them keep it."
    (card,) = write_cards(found)
    together = "Its groups are client 0, client 1, client 2; client 3, client 4, client 5 (in 6 of 6 runs)."
    assert together in card.sentences


def test_advice_is_to_do_nothing_where_nothing_is_shown() -> None:
    said = write_advice(view({"fedavg": BASE, "fedprox(mu=1)": above(0.01, 0.02)}))
    assert said[0] == "Keep FedAvg: no method is significantly better."
    assert said[1].startswith("The highest score is that of FedProx (+1.0 points, ")
    assert said[1].endswith("the difference is not significant.")
