"""The words of a page that depend on whether there is a paper: a question of our own has nobody's numbers beside ours."""

from dataclasses import dataclass

from coterie.reproduce.file import Reproduction
from coterie.reproduce.rules import RULES, ClaimKind


@dataclass(frozen=True)
class PageWords:
    """Headings of tables and lists, and whose side of 0 a claim is about."""

    says: str
    numbers: tuple[str, ...]  # after what a claim says
    scores: str  # behind a part's name, above the scores of its methods
    not_own_row: str
    protocol: str
    protocol_column: str
    deviations: str
    holds: str
    counted: str
    whose: str  # side of 0, or number
    as_there: str  # of what is shown as a paper shows it
    diamond: str  # of figures

    def rule(self, kind: ClaimKind) -> str:
        """When a claim of this kind is shown."""
        return RULES[kind].format(whose=self.whose, as_there=self.as_there)


OF_A_PAPER = PageWords(
    says="the paper says",
    numbers=("theirs", "ours (95 % interval)", "over", "p", "outcome"),
    scores=": ours (theirs)",
    not_own_row="Not the paper's own row:",
    protocol="The paper's protocol, its words between quotation marks:",
    protocol_column="the paper",
    deviations="What differs from the paper:",
    holds="A claim *replicates*, or *holds in our variant*, when:",
    counted="The verdict counts the paper's claims; controls are corrected apart and explain, they do not count.",
    whose="the paper's",
    as_there=", as in the paper",
    diamond=", ◆ the paper",
)
OF_OUR_OWN = PageWords(
    says="claim",
    numbers=("claimed", "found (95 % interval)", "over", "p", "outcome"),
    scores="",
    not_own_row="What makes it a variant:",
    protocol="The protocol:",
    protocol_column="this study",
    deviations="What else is to be known of it:",
    holds="A claim *holds in our variant* when:",
    counted="The verdict counts the claims; controls are corrected apart and explain, they do not count.",
    whose="the claimed",
    as_there="",
    diamond="",
)


def wording_of(study: Reproduction) -> PageWords:
    """The words that fit a study."""
    return OF_A_PAPER if study.has_paper else OF_OUR_OWN
