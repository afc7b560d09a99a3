"""The answers in words: one sentence each, the same on the terminal and on the page."""

from dataclasses import dataclass

import numpy as np

from coterie.grouping.choice.distinct import LEVEL
from coterie.inspect.inspection import Inspection
from coterie.inspect.pilot import Pilot

FEW = 5  # clients named in a sentence
MANY_ALONE = 3  # a group of one client in so many groups, and the answer says so


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the evidence in a sentence."""

    question: str
    short: str
    evidence: str


def answers(found: Inspection) -> list[Answer]:
    """The four answers, those that were not asked for left away."""
    parts = [_differ(found), _beyond(found), _groups(found), _pilot(found)]
    return [answer for answer in parts if answer is not None]


def _differ(found: Inspection) -> Answer:
    d = found.differ
    where = " as a whole or within a class" if found.beyond_labels is not None else ""
    evidence = (
        f"The two halves of a client agree with a correlation of {d.agreement:.2f} (0 is chance); that they are more alike{where} than "
        f"halves of different clients: {_p(d.p)}."
    )
    return Answer("Do clients differ more than chance?", "yes" if d.p <= LEVEL else "not that one can see", evidence)


def _beyond(found: Inspection) -> Answer | None:
    d = found.beyond_labels
    if d is None:
        return None
    evidence = f"Within a class, the halves of a client agree with a correlation of {d.agreement:.2f}, {_p(d.p)}."
    if np.isnan(d.p):
        return Answer("Beyond their label proportions?", "cannot be told", "No class is held by two clients in both halves.")
    return Answer("Beyond their label proportions?", "yes" if d.p <= LEVEL else "not that one can see", evidence)


def _groups(found: Inspection) -> Answer:
    g = found.groups
    question = "Distinct groups, or a continuum?"
    if np.isnan(g.p):
        return Answer(question, "too few clients to tell", f"{len(found.ids)} clients; at least 4 are needed, and 20 to see much.")
    stable = f"the {g.k} groups found on either half agree to {g.stability[g.k - 2]:.2f} (adjusted Rand index)"
    against = f"against one population of the same spread, {_p(g.p)}"
    if g.distinct:
        where = "" if g.view == "all" else " beyond label proportions"
        sizes = np.bincount(g.labels)
        alone = int(np.sum(sizes == 1))
        apart = f", {alone} of them a single client" if MANY_ALONE * alone >= g.k else ""
        told = " A few clients stand apart from all others, which need not be groups." if apart else ""
        evidence = f"Sizes {', '.join(map(str, sizes))}; {against}; {stable}.{told}{_outliers(found)}"
        return Answer(question, f"{g.k} distinct groups{where}{apart}", evidence)
    if g.overlapping:
        evidence = (
            f"The same classes come together in client after client ({_p(g.p_company)}), but groups are no more distinct than chance:"
        )
        return Answer(question, "structure, but groups overlap", f"{evidence} {against}; {stable}.{_outliers(found)}")
    return Answer(question, "a continuum, as far as one can see", f"No distinct groups {against}; {stable}.{_outliers(found)}")


def _outliers(found: Inspection) -> str:
    rows = found.groups.outliers
    return f" Far from their group: {_named([found.ids[r] for r in rows])}." if len(rows) else ""


def _pilot(found: Inspection) -> Answer | None:
    p = found.pilot
    if p is None:
        return None
    one, grouped, random = (100 * a for a in p.accuracies)
    evidence = (
        f"Right on {p.on} after a short pilot with {found.groups.k} groups: one model {one:.1f} %, groups {grouped:.1f} %, random groups "
        f"of the same sizes {random:.1f} % ({p.as_good} of {len(p.random)} drawings as good). {_who(p, found.pilot_ids)}"
    )
    short = {"help": "expected to help", "hurt": "expected to hurt", "not help": "not expected to help"}[p.verdict]
    return Answer("Would grouping help?", f"{short}: {100 * p.gain:+.1f} ± {200 * p.error:.1f} points", evidence)


def _who(p: Pilot, ids: tuple[str, ...]) -> str:
    gains = p.client_gains
    order = np.argsort(gains, kind="stable")
    hurt = [ids[i] for i in order if gains[i] < 0]
    helped = [ids[i] for i in order[::-1] if gains[i] > 0]
    return f"Better for {_named(helped)}; worse for {_named(hurt)}; the same for {len(ids) - len(helped) - len(hurt)}."


def _named(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.001 else "p < .001"
