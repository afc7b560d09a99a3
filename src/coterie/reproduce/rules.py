"""The rules of a verdict on a paper's claims, each stated once: what is tested for every kind, and how few repetitions decide nothing."""

from typing import Literal

ClaimKind = Literal["difference", "level", "at_least", "at_most", "trend", "rounds"]
FEWEST = 5  # seeds or draws; with fewer Student's t is all trust in a shape: nothing is decided
SHOWN = (
    "*Shown* is what has a one-sided p below 0.05 after Holm's correction over the claims of the study, for and against each of them, over "
    "every source of error that is known: draws of the data where there are several, else seeds; and test clients"
)
RULES: dict[ClaimKind, str] = {  # `whose`: the paper's, or what was claimed without one
    "difference": "one method minus the other is shown to be on {whose} side of 0 (sign 0: within the stated margin of 0, by two "
    "one-sided tests); the size is not judged",
    "level": "the value is shown to be within the stated margin of {whose} number (two one-sided tests)",
    "at_least": "the value is shown to be above the number",
    "at_most": "the value is shown to be below the number",
    "trend": "the change over the range of the parts, along each seed's least-squares line, is shown to be on {whose} side of 0",
    "rounds": "one method is shown to be better in at least so many percent of the rounds (Wilcoxon's one-sided test in each round, put "
    "together by the partial conjunction of Benjamini and Heller, 2008); shown is the share of rounds with p below 0.05{as_there}",
}
