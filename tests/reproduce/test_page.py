"""What a page says of how it was done: who took part, what was not run, which curves are missing, digits that show an interval."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.reproduce.claims import ClaimResult, StudyVerdict, explain_variant
from coterie.reproduce.page import (
    EXPLORATORY_NOTE,
    describe_curves,
    describe_scores,
    make_claim_cells,
    make_part_cells,
    render_parts,
    render_scores,
    render_verdict,
)
from coterie.reproduce.rejudge import ReproductionResult, judge_declared
from coterie.reproduce.result_files import PartRecord, Provenance, StudyRecord
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, StudyPart
from coterie.reproduce.values import PartValues
from made_studies import made_study

STUDY = {"methods": ["fedavg"], "data": "synthetic(0,0)", "seeds": "0-9", "rounds": 20}
CLAIM = Claim(says="it", part="p", one="fedavg", two="local")


def told(part: StudyPart, values: PartValues, claim: Claim = CLAIM, why_not: str = "", **study: Any) -> tuple[ReproductionResult, PartRun]:
    """A study of one part with these scores, and that part."""
    made = made_study({**STUDY, **study}, [part], [claim])
    run = PartRun(part, why_not=why_not, settings=made.get_settings(part).settings)
    return ReproductionResult(made, [run], {part.name: values}, StudyVerdict(())), run


def scored(row: str = "fedavg") -> PartValues:
    values = PartValues()
    values.add(row, "final", 0, 50.0)
    return values


@pytest.mark.parametrize(
    ("study", "who"),
    [
        ({}, "all"),
        ({"cohort": 4}, "4"),
        ({"selection": "windows", "window": 0.3}, "30 % (by windows)"),
        ({"selection": "windows", "cohort": 4}, "4 (by windows)"),
    ],
)
def test_who_takes_part(study: dict[str, Any], who: str) -> None:
    outcome, run = told(StudyPart(name="p"), scored(), **study)
    cells = make_part_cells(outcome.study, run, outcome.values["p"])
    assert (cells["rounds"], cells["clients a round"]) == ("20", who)


@pytest.mark.parametrize(("every", "often"), [(1, "round"), (2, "2 rounds"), (3, "3 rounds (7 in all: last 10 averages these)")])
def test_how_often_it_is_evaluated(every: int, often: str) -> None:
    outcome, run = told(StudyPart(name="p"), scored(), evaluate_every=every)
    assert make_part_cells(outcome.study, run, outcome.values["p"])["evaluated every"] == often


def test_a_measurement_that_was_not_run_is_said_to_be_not_run() -> None:
    outcome, run = told(StudyPart(name="p", measure="pni"), PartValues(), why_not="declared, no scores")
    cells = make_part_cells(outcome.study, run, outcome.values["p"])
    assert (cells["measured"], cells["seeds"]) == ("pni", "10")
    assert cells["differs from the paper"] == "not run: declared, no scores"
    assert describe_scores(outcome) == ""  # nothing was trained: there are no accuracies
    assert describe_scores(told(StudyPart(name="p"), scored())[0]).startswith("% accuracy on every client's own test part")
    assert "nat" in describe_scores(told(StudyPart(name="p"), scored(), model="lm(folder)")[0])  # texts have no accuracy


def test_what_all_parts_share_stands_once_above_their_table() -> None:
    parts = [StudyPart(name="p", variant="", change={"local.lr": 0.1}), StudyPart(name="q", variant="small|er", change={"local.lr": 0.5})]
    made = made_study(STUDY, parts, [CLAIM])
    runs = [PartRun(part, settings=made.get_settings(part).settings) for part in parts]
    outcome = ReproductionResult(made, runs, {"p": scored(), "q": scored()}, StudyVerdict(()))
    (shared, header, _, *rows, reason) = render_parts(outcome, StudyRecord("", "", {"p": PartRecord(20, made=Provenance("c" * 40))}))
    assert shared.startswith("All parts: data `synthetic(0,0)`; model `mclr`; rounds 20;")
    assert header == "| part | rate | differs from the paper | commit |"
    assert rows == ["| p | 0.1 | as printed | `cccccccccccc` |", "| q | 0.5 | a | not recorded |"]
    assert reason == "\n- a: small\\|er."


def test_fewer_rounds_and_seeds_than_declared_are_counted() -> None:
    outcome, run = told(StudyPart(name="p"), scored())
    assert run.settings is not None
    short = replace(run, settings=replace(run.settings, plan=replace(run.settings.plan, rounds=5)))
    cells = make_part_cells(outcome.study, short, outcome.values["p"])
    assert (cells["rounds"], cells["seeds"]) == ("5 of 20", "1 of 10")


def test_scores_are_those_that_claims_and_the_paper_are_about() -> None:
    values = scored()
    for score in ("last10", "mean", "macro"):
        values.add("fedavg", score, 0, 40.0)
    values.add("fedavg | global", "final", 0, 30.0)
    lines = list(render_scores(told(StudyPart(name="p"), values)[0]))
    assert lines[1] == "| part | method | final | mean |"  # CLAIM is about the mean
    assert lines[3:] == ["| p | `fedavg` | 50.0 | 40.0 |"]


def test_parts_without_curves_are_named() -> None:
    kept, lost = scored(), scored()
    kept.means["fedavg"] = (np.array([1, 20]), np.array([40.0, 50.0]))
    parts = [StudyPart(name=name) for name in ("p", "q", "r")]
    made = made_study(STUDY, parts, [CLAIM])
    runs = [PartRun(part, settings=made.get_settings(part).settings) for part in parts]
    assert describe_curves(ReproductionResult(made, runs, {"p": kept, "q": lost, "r": scored()}, StudyVerdict(()))).endswith(
        "Means over seeds only: p. No curves: q, r."
    )


def test_curves_of_something_else_than_the_claims_are_said_to_be_so() -> None:
    about = Claim(says="it", part="p", one="fedex | online", two="fedavg | global")
    values = scored()
    values.means["fedavg"] = (np.array([1, 20]), np.array([40.0, 50.0]))
    assert "the curves are of clients' own test parts" in describe_curves(told(StudyPart(name="p"), values, about)[0])
    values.means["fedavg | global"] = values.means["fedavg"]
    assert "own test parts" not in describe_curves(told(StudyPart(name="p"), values, about)[0])


def test_a_reason_that_several_parts_share_is_said_once() -> None:
    parts = [StudyPart(name="p", variant="another model; our reading"), StudyPart(name="q", variant="another model; other data")]
    claim = Claim(says="it", kind="trend", parts=["p", "q"], one="fedavg", sign="+")
    made = made_study(STUDY, parts, [claim])
    runs = [PartRun(part, settings=made.get_settings(part).settings) for part in parts]
    assert explain_variant(made, claim, runs, 10) == "another model; our reading; other data"


@pytest.mark.parametrize(
    ("claim", "theirs", "ours"),
    [
        ({"kind": "level", "paper": 79.35, "within": 2.0}, "79.35 ± 2", "0.0 (0.0 to 0.0)"),
        ({"score": "similarity", "two": "b"}, "above 0", "+0.041 (+0.037 to +0.045)"),
        ({"score": "r2", "kind": "at_least", "paper": 0.8}, "≥ 0.8", "0.041 (0.037 to 0.045)"),
        ({"two": "b", "paper": 7.32}, "+7.32", "+0.04 (+0.04 to +0.05)"),
    ],
)
def test_numbers_have_the_digits_that_they_need(claim: dict[str, Any], theirs: str, ours: str) -> None:
    made = ClaimResult(Claim.model_validate({"says": "it", "one": "a", **claim}), "replicates", 0.0412, 0.0372, 0.0451, repetitions=10)
    assert make_claim_cells(made)[1:3] == [theirs, ours]


def test_a_row_that_costs_too_much_states_what() -> None:
    """ "declared, no scores (needs a GPU)" was the reason of rows of five minutes and of a day alike."""
    cost = "31 GPU minutes (40 us a step)"
    parts = [StudyPart(name="p", cost=cost, gpu=True), StudyPart(name="q", cost=cost, instead="p"), StudyPart(name="r", gpu=True)]
    made = made_study(STUDY, parts, [CLAIM, CLAIM.model_copy(update={"says": "other", "part": "q"})])
    found = judge_declared(made)
    assert [one.outcome for one in found.result.results] == ["not run", "not run"]
    assert found.result.results[0].why_not == f"needs about {cost}"
    assert found.result.results[1].why_not == f"needs about {cost}; reduced to the part 'p'"
    assert found.runs[2].why_not == "declared, no scores (needs a GPU)"
    assert make_claim_cells(found.result.results[0])[-1] == f"not run: needs about {cost}"
    outcome, run = told(StudyPart(name="p", variant="100 rounds", cost=cost), scored())
    cells = make_part_cells(outcome.study, run, outcome.values["p"])
    assert cells["differs from the paper"] == f"100 rounds; the whole row needs about {cost}"


def test_rows_that_are_set_aside_have_a_dagger() -> None:
    """The threshold was set with the scores known."""
    made = ClaimResult(CLAIM, "not comparable", 1.0, 0.5, 1.5, why_not="38 % accuracy")
    assert make_claim_cells(made)[-1] == "not comparable †: 38 % accuracy"
    outcome, _ = told(StudyPart(name="p"), scored())
    assert EXPLORATORY_NOTE in "".join(render_verdict(replace(outcome, result=StudyVerdict((made,)))))
    assert EXPLORATORY_NOTE not in "".join(render_verdict(replace(outcome, result=StudyVerdict((replace(made, outcome="inconclusive"),)))))
