"""The answers of an inspection in words, the same on the terminal and on the page."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.metrics import DEFAULT_METRICS, METRICS
from coterie.analysis.verdict import format_p_value
from coterie.core.tasks import Task
from coterie.grouping.structure import LEVEL, MIN_CLIENTS, StructureResult
from coterie.grouping.structure_reference import MIN_AGREEMENT, MIN_RECURRENCE
from coterie.inspect.inspection import Inspection
from coterie.inspect.pilot import Pilot
from coterie.report.wording import name_some

TOO_FEW = "too few clients to decide"


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the evidence in a sentence."""

    question: str
    short: str
    evidence: str


def write_answers(found: Inspection) -> list[Answer]:
    """The four answers; those that were not asked for are omitted."""
    parts = [_answer_differ(found), _answer_beyond_labels(found), _answer_groups(found), _answer_pilot(found)]
    return [answer for answer in parts if answer is not None]


def _answer_differ(found: Inspection) -> Answer:
    d = found.differ
    where = " as a whole or within a class" if found.beyond_labels is not None else ""
    counts = " or their label counts are further apart" if found.labels is not None else ""
    evidence = (
        f"The two halves of a client agree with a correlation of {d.agreement:.2f} (0 is chance); that they are more alike{where} than "
        f"halves of different clients{counts}: {format_p_value(d.p)}.{_describe_labels(found)}"
    )
    if found.task != "classification":
        evidence += f" This is a {Task(found.task)}: label proportions exist for classes only."
    return Answer("Do clients differ more than chance?", _describe_p_value(d.p, found), evidence)


def _describe_labels(found: Inspection) -> str:
    spread = found.labels
    if spread is None:
        return ""
    low, high = (f"{100 * share:.0f} % of {found.ids[row]}" for share, row in (spread.low, spread.high))
    differ = "differ" if spread.p <= LEVEL else "do not differ more than by chance"
    test = f"{format_p_value(spread.p)}, Cramér's V {spread.association:.2f}"
    return f" Label proportions {differ} ({test}): class {found.classes[spread.label]} is {high} and {low}."


def _describe_p_value(p: float, found: Inspection) -> str:
    if p <= LEVEL:
        return "yes"
    return TOO_FEW if len(found.ids) < MIN_CLIENTS else "not significantly"


def _answer_beyond_labels(found: Inspection) -> Answer | None:
    d = found.beyond_labels
    if d is None:
        return None
    evidence = f"Within a class, the halves of a client agree with a correlation of {d.agreement:.2f}, {format_p_value(d.p)}."
    if np.isnan(d.p):
        return Answer("Beyond their label proportions?", "cannot be tested", "No class is held by two clients in both halves.")
    return Answer("Beyond their label proportions?", _describe_p_value(d.p, found), evidence)


def _answer_groups(found: Inspection) -> Answer:
    g = found.groups
    question = "Distinct groups, or a continuum?"
    if np.isnan(g.p):
        evidence = f"{len(found.ids)} clients; at least {MIN_CLIENTS} are needed, better 20.{_describe_labels(found)}"
        return Answer(question, TOO_FEW, evidence)
    at = g.cut - 2
    stable = (
        f"the groups found on either half agree to {g.stability[at]:.2f} (adjusted Rand index), and among two thirds of the clients the "
        f"worst of them is found again to {g.recurrence[at]:.2f} (Jaccard index)"
    )
    if g.distinct:
        where = "" if g.view == "all" else " beyond label proportions"
        sizes = ", ".join(map(str, np.bincount(g.labels)))
        evidence = f"Sizes {sizes}; {_describe_reference(g.p)}; {stable}.{_describe_outliers(found)}"
        return Answer(question, f"{g.k} distinct groups{where}", evidence)
    none = _explain_no_groups(g)
    if g.overlapping:
        evidence = f"The same classes occur together in many clients ({format_p_value(g.p_company)}), but {none}"
        return Answer(question, "structure, but groups overlap", f"{evidence}; at {g.k} groups, {stable}.{_describe_outliers(found)}")
    evidence = f"{none[0].upper()}{none[1:]}; at {g.k} groups, {stable}.{_describe_outliers(found)}"
    return Answer(question, "a continuum: no distinct groups found", evidence)


def _explain_no_groups(g: StructureResult) -> str:
    """Why no groups are reported: they are not distinct, or distinct ones are not stable."""
    if g.p_any > LEVEL:
        return f"no number of groups is more distinct than chance: {_describe_reference(g.p_any)}"
    at, sizes = g.cut - 2, np.bincount(g.labels)
    failed = []
    if g.stability[at] < MIN_AGREEMENT:
        failed.append(f"they are not found again on the other half (agreement {g.stability[at]:.2f}, under {MIN_AGREEMENT:g})")
    if g.recurrence[at] < MIN_RECURRENCE:
        failed.append(f"they are not found again among other clients ({g.recurrence[at]:.2f}, under {MIN_RECURRENCE:g})")
    if g.cut - len(sizes) >= len(sizes):
        failed.append("they are mostly single clients")
    if not failed:
        unstable = f"the numbers of groups that are distinct ({_describe_reference(g.p_any)}) are not stable"
        return f"{unstable}, and {g.k} groups, which are stable, are not distinct"
    return f"the distinct groups ({_describe_reference(g.p_any)}) are not stable: {' and '.join(failed)}"


def _describe_reference(p: float) -> str:
    return f"against one population of the same spread, {format_p_value(p)}"


def _describe_outliers(found: Inspection) -> str:
    rows = found.groups.outliers
    return f" Single, or far from their group: {name_some([found.ids[r] for r in rows])}." if len(rows) else ""


def _answer_pilot(found: Inspection) -> Answer | None:
    p = found.pilot
    if p is None:
        return None
    one, grouped, random = (100 * a for a in p.accuracies)
    metric = METRICS[DEFAULT_METRICS[p.task.name]]
    what, unit = (metric.title, " %") if metric.is_count else (f"{metric.title} in hundredths", "")
    evidence = (
        f"{what} on {p.on} after a short pilot with {found.groups.k} groups: one model {one:.1f}{unit}, groups {grouped:.1f}{unit}, random "
        f"groups of the same sizes {random:.1f}{unit} ({p.as_good_count} of {len(p.random)} drawings as good). "
        f"{_describe_client_gains(p, found.pilot_ids)}"
    )
    short = {"help": "expected to help", "hurt": "expected to hurt", "not shown": "no significant help"}[p.verdict]
    return Answer("Would grouping help?", f"{short}: {100 * p.gain:+z.1f} ± {200 * p.error:.1f} points", evidence)


def _describe_client_gains(p: Pilot, ids: tuple[str, ...]) -> str:
    gains = p.client_gains
    order = np.argsort(gains, kind="stable")
    hurt = [ids[i] for i in order if gains[i] < 0]
    helped = [ids[i] for i in order[::-1] if gains[i] > 0]
    same = len(ids) - len(helped) - len(hurt)
    return f"Better for {name_some(helped) or 'none'}; worse for {name_some(hurt) or 'none'}; the same for {same}."
