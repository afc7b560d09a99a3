"""Every score: what it is called, and where it is shown. A new one is a line here, and a number in `scores` (of a curve of accuracies) or a
property of `records.Records` (of every round)."""

from dataclasses import dataclass
from typing import Literal

Headline = Literal["final", "last10", "mean", "validated", "max"]  # what a comparison may rest on
Curve = Literal["final", "last10", "mean", "max", "median", "change"]  # read from a curve of accuracies
ByRound = Literal[
    "macro", "worst", "bottom_decile", "loss", "auroc", "mae", "rmse", "perplexity"
]  # known of every round; the score is that of the last
Score = Literal[Curve, ByRound, "validated", "ari", "unseen"]


@dataclass(frozen=True)
class ScoreName:
    """One score in words."""

    title: str  # over a column
    words: str = ""  # in a sentence; {measure} is what is measured, {rounds} are those averaged
    percent: bool = True  # of the measure, and shown times 100 as that is
    compared: bool = False  # reported by every comparison
    tabled: bool = False  # in the table of a result
    printed: bool = False  # on the terminal, after a run


SCORES: dict[Score, ScoreName] = {
    "final": ScoreName("final", "{measure} after the last round", compared=True, tabled=True, printed=True),
    "last10": ScoreName("last 10", "mean {measure} of rounds {rounds}", compared=True, tabled=True, printed=True),
    "mean": ScoreName("mean", "mean {measure} over the rounds", compared=True, tabled=True, printed=True),
    "validated": ScoreName("validated", "{measure} in the round that validation chooses", compared=True),
    "max": ScoreName("max", "highest {measure} of any round (chosen on test data)"),  # only when asked for
    "median": ScoreName("median", "median {measure} over the rounds"),
    "change": ScoreName("change", "mean change of {measure} from round to round"),
    "macro": ScoreName("macro", "mean over clients of their {measure} after the last round", tabled=True),
    "worst": ScoreName("worst", "{measure} of the client served worst after the last round", tabled=True, printed=True),
    "bottom_decile": ScoreName("bottom decile", "mean {measure} of the tenth of clients served worst after the last round"),
    "loss": ScoreName("loss", "loss after the last round", percent=False, tabled=True),
    "auroc": ScoreName("AUROC", "area under the ROC curve after the last round", tabled=True, printed=True),
    "mae": ScoreName("MAE", "mean absolute error after the last round", percent=False, tabled=True, printed=True),
    "rmse": ScoreName("RMSE", "root mean squared error after the last round", percent=False, tabled=True, printed=True),
    "perplexity": ScoreName("perplexity", "perplexity after the last round", percent=False, tabled=True, printed=True),
    "unseen": ScoreName("unseen", "{measure} after the last round of clients that took no part", tabled=True, printed=True),
    "ari": ScoreName("ARI", "adjusted Rand index with the true groups", percent=False, tabled=True, printed=True),
}
COMPARED: tuple[Score, ...] = tuple(name for name, told in SCORES.items() if told.compared)
TABLED: tuple[Score, ...] = tuple(name for name, told in SCORES.items() if told.tabled)
