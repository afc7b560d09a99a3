"""What a reader should know beside the scores: an incomplete or small study, samples of clients, malicious clients, missing replies."""

import shlex
from collections import Counter

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis.auto_decisions import summarize_decisions
from coterie.analysis.drift_alarms import summarize_alarms
from coterie.analysis.findings import Findings
from coterie.analysis.records import Records
from coterie.analysis.roles import build_known
from coterie.analysis.verdict_rules import UNDECIDED, compute_needed_repetitions, describe_design
from coterie.core.arrays import Doubles, Ints
from coterie.core.asks import Refusal
from coterie.evidence.manifest import REQUEST
from coterie.evidence.reader import Evidence
from coterie.evidence.records import STOPPED
from coterie.methods.wrapper import RateOverride


def describe_malicious(records: Records) -> str | None:
    """A sentence on the scores of a study with malicious clients; None where there are none."""
    if records.malicious is None:
        return None
    count = int(records.malicious.sum(axis=1).max(initial=0))
    return f"{count} of {len(records.ids)} clients are malicious ({records.settings.plan.attack}): every score is of the honest ones."


Z_95 = 1.96  # standard errors of 95 %, by the normal distribution: samples are of hundreds of clients or more


def describe_sampling(records: Records) -> str | None:
    """A sentence on a study that evaluates a sample of its clients, or keeps rows of one; None where it does neither."""
    wanted, population = records.settings.plan.evaluate_clients, len(records.ids)
    if wanted is None or wanted >= population:
        return _describe_kept_rows(records)
    sample = f"Scores are of {wanted:,} of {population:,} clients, drawn by their ids"
    reach = Z_95 * _max_sample_error(records, population)
    if not np.isfinite(reach):
        return f"{sample}."
    return f"{sample}: accuracy over all clients lies within {100 * reach:.2f} points of the reported one (95 %, each method by itself)."


def _describe_kept_rows(records: Records) -> str | None:
    """The same where all clients are evaluated and rows are kept of some."""
    kept, population = records.settings.plan.keep_clients, len(records.ids)
    if kept is None or kept >= population:
        return None
    sample = f"Rows are kept of {kept:,} of {population:,} clients, drawn by their ids"
    if not records.population:
        return f"{sample}: {records.metric.noun} is of these alone."
    return (
        f"{sample}: {records.metric.noun}, its mean, quantiles and worst over clients, and the loss are of all clients; "
        "results for single clients, classes and groups are of the sample."
    )


def compute_sample_error(credits: Doubles | Ints, tested: Ints, population: int) -> float:
    """The standard error of sum(credits) / sum(tested) as the ratio of all clients; clients are drawn without replacement."""
    n, total = len(tested), float(tested.sum())
    if n < 2 or not total:
        return float("nan")
    left = credits - credits.sum() / total * tested
    return float(np.sqrt(n / (n - 1) * np.sum(left**2) * max(1 - n / population, 0.0)) / total)


def _max_sample_error(records: Records, population: int) -> float:
    found = [np.nan]
    for lane in records.credits.reshape(-1, *records.credits.shape[2:]):
        reached = np.flatnonzero((lane >= 0).any(axis=1))
        if len(reached):
            known = lane[reached[-1]] >= 0
            found.append(compute_sample_error(lane[reached[-1]][known].astype(np.float64), records.tested[reached[-1]][known], population))
    return float(np.nanmax(found)) if np.isfinite(found).any() else float("nan")


MAX_PULL = 0.1  # of the way back to where a step's term pulls (docs/reference/methods/fesem.md)
MAX_NAMED = 3  # clients named one by one


def collect_remarks(evidence: Evidence) -> list[str]:
    """Sentences on anything unusual in the rounds. A reply that its site's policy denies is not unusual: it is reported elsewhere."""
    unusual = [*_rounds_without_replies(evidence), *_early_stops(evidence), *_refused_replies(evidence), *_strong_proximal_terms(evidence)]
    return [*unusual, *summarize_decisions(evidence), *summarize_alarms(evidence)]


def _strong_proximal_terms(evidence: Evidence) -> list[str]:
    """Methods whose proximal term takes much of every local step back: they may score low with the right groups."""
    remarks, plan = [], evidence.settings.plan
    for label in evidence.settings.methods:
        method = build_known(label)
        if method is None:
            continue
        rate, weight = (method.lr if isinstance(method, RateOverride) else None) or plan.local.lr, method.proximal
        if rate * weight > MAX_PULL:
            remarks.append(
                f"{label}: its proximal term takes {min(rate * weight, 1.0):.0%} of the way back in every local step (weight {weight:g} at "
                f"learning rate {rate:g}), so that it trains little; give it a weight of at most {MAX_PULL / rate:.2g}."
            )
    return remarks


def _early_stops(evidence: Evidence) -> list[str]:
    ends = evidence.ends()
    rounds = sorted(end.round_ for end in ends.values() if end.status == STOPPED)
    if not rounds:
        return []
    when = f"in round {rounds[0]}" if rounds[0] == rounds[-1] else f"in rounds {rounds[0]} to {rounds[-1]}"
    return [
        f"{len(rounds)} of {len(ends)} runs stopped early {when}, by clients' validation parts: in later rounds they score as in "
        "their last."
    ]


def _rounds_without_replies(evidence: Evidence) -> list[str]:
    rounds = evidence.frame("rounds", ["samples", "absent"])
    rounds = rounds[rounds["round"] > 0]
    silent = rounds[(rounds["samples"] == 0) & (rounds["absent"] > 0)]
    total = rounds["method"].value_counts()
    return [
        f"{label}: no client replied in {len(own)} of {total[label]} rounds (over all seeds); its models did not change."
        for label, own in silent.groupby("method", observed=True, sort=False)
    ]


def _refused_replies(evidence: Evidence) -> list[str]:
    """Clients that sent what cannot be right, by reason, those with most refusals first."""
    found: dict[str, Counter[str]] = {}
    ids = {draw: roster.column("id").to_pylist() for draw, roster in evidence.rosters.items()}
    for batch in evidence.batches("absences", ["client", "why"]):
        for row in batch.to_pylist():
            if row["why"] not in ("ABSENT", Refusal.DENIED.name):
                found.setdefault(row["why"], Counter())[str(ids[row["draw"]][row["client"]])] += 1
    return [_refusal_sentence(why, counts) for why, counts in found.items()]


def _refusal_sentence(why: str, counts: Counter[str]) -> str:
    names = ", ".join(name for name, _ in counts.most_common(MAX_NAMED))
    names += f" and {len(counts) - MAX_NAMED} more" if len(counts) > MAX_NAMED else ""
    reason = Refusal[why].value if why in Refusal.__members__ else why
    advice = "; are all values of its data finite, and is --lr low enough?" if why == Refusal.NOT_FINITE.name else "."
    return f"{format_count(len(counts), 'client')} ({names}) {reason}, {counts.total()} times in all: that did not count{advice}"


def list_caveats(findings: Findings) -> list[str]:
    """What a reader should know before any finding."""
    repetitions, sentences = findings.repetitions, []
    n = _count_repetitions(findings)
    if n == 1:
        sentences.append("One seed cannot test: every difference below may be chance. Run at least 5, better 10 draws of the data.")
    elif (design := describe_design(n, repetitions.unit, len(findings.roles.methods), "better 10", findings.test)) is not None:
        sentences.append(design)
    return sentences + list_incomplete(findings) + list_unknowns(findings)


def list_incomplete(findings: Findings) -> list[str]:
    """What is missing of a study, which clients its scores leave out, and a score that is too high."""
    settings, repetitions, sentences = findings.records.settings, findings.repetitions, []
    if len(repetitions.draws) < findings.draws.planned_draws:
        sentences.append(f"Only {len(repetitions.draws)} of {findings.draws.planned_draws} draws are complete and compared.")
    whole = len(repetitions.draws) * len(settings.seeds)
    if repetitions.runs < whole:
        sentences.append(f"Only {repetitions.runs} of {format_count(whole, 'repetition')} are complete and compared.")
    if findings.scope.last < settings.plan.rounds:
        sentences.append(f"The study is at round {findings.scope.last} of {settings.plan.rounds}: results are not final.")
    sentences += [text for text in (describe_malicious(findings.records), describe_sampling(findings.records)) if text is not None]
    others = [finding for finding in findings.methods.values() if finding.role != "method" and finding.divergence is not None]
    sentences += [f"{findings.display_name(finding.label)}: {finding.divergence}." for finding in others]
    if findings.score == "max":
        sentences.append("The score is the highest of all rounds on test data, as some papers report it: too high, do not rely on it.")
    return sentences


def list_unknowns(findings: Findings) -> list[str]:
    """What the study does not estimate, in sentences, each once."""
    labels = findings.roles.methods or list(findings.methods)
    unknown = [text for label in labels for text in findings.methods[label].gap.sources.unknown if findings.methods[label].gap.n]
    return [*dict.fromkeys(f"Limitation: {text.replace(': no estimate', ', so no estimate')}." for text in unknown)]


ADVISED_REPETITIONS = 10  # in the command that is suggested


def suggest_more_runs(findings: Findings) -> list[str]:
    """The command that adds repetitions, where these are too few to settle anything; nothing where no command can."""
    there, needed = _count_repetitions(findings), compute_needed_repetitions(len(findings.roles.methods))
    wanted = max(needed, ADVISED_REPETITIONS)
    settled = findings.test is not None and not any(findings.methods[label].outcome in UNDECIDED for label in findings.roles.methods)
    command = _resume_command(findings, wanted) if there < needed and not settled else None
    return [] if command is None else [f"To run {wanted} {findings.repetitions.unit}s: {command}"]


def _count_repetitions(findings: Findings) -> int:
    return len(findings.repetitions.draws) if findings.repetitions.several_draws else findings.repetitions.runs


def _resume_command(findings: Findings, wanted: int) -> str | None:
    """None where nothing is on disk, or the data are an object that no command can name."""
    from coterie.data.catalogue import is_data_spec  # here: reading a comparison need not wait for every data set's code

    folder, settings = findings.records.evidence.source.folder, findings.records.settings
    if folder is None or not is_data_spec(settings.data):
        return None
    place = folder.parent if (folder.parent / REQUEST).is_file() else folder
    more = f"--draws {wanted}" if findings.repetitions.several_draws else f"--seeds {_format_seeds(settings.seeds, wanted)}"
    return f"coterie resume {shlex.quote(str(place))} {more}"


def _format_seeds(there: tuple[int, ...], wanted: int) -> str:
    """The seeds that there are and enough more, as an option's value."""
    after = max(there) + 1
    whole = sorted({*there, *range(after, after + max(wanted - len(there), 0))})
    if whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}-{whole[-1]}"
    return ",".join(map(str, whole))
