"""Clients one by one: who gains, who loses, who clearly loses, who is served worst."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, StudyDraws
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.right_answers import differing_of, mean_right
from coterie.analysis.roles import Roles
from coterie.core.arrays import Doubles
from coterie.statistics import WorseOff, worse_off


@dataclass(frozen=True)
class Fairness:
    """Clients one by one: the measure over the last ten rounds with the model each is served.

    Where draws deal the data out anew, client 3 of one draw is not client 3 of the next: what is said of single clients is then of the
    first draw, and shares are means over draws.
    """

    accuracy: Doubles  # (N,) mean over runs; nan for a client without test samples
    gain: Doubles  # (N,) over the baseline, mean over runs
    gain_over_local: Doubles | None  # (N,) over training alone
    worse: float  # share of clients whose mean is below the baseline's
    worse_than_alone: float
    losers: WorseOff | None  # against the baseline, client by client; None where hostile clients change from seed to seed, or nothing is
    # known of single samples
    clearly_worse: float  # clients clearly worse off than under the baseline, mean over draws where these have clients of their own
    tested: float  # clients of whom that could be said, likewise
    bottom_decile: Estimate  # mean accuracy of the tenth of clients served worst, after the last round
    worst: Estimate  # accuracy of the client served worst, after the last round


def fairness_of(study: StudyDraws, roles: Roles, label: str) -> Fairness:
    """One method's clients beside the same clients under the baseline and alone."""
    parts = [study.each] if study.repetitions.same_clients else [(own,) for own in study.each]  # draws with the same clients together
    local, scores = roles.first("local"), study.scores[label]
    gains = [_gain(part, label, roles.baseline) for part in parts]
    alone = [_gain(part, label, local) for part in parts] if local is not None else None
    losers = [_losers(part, label, roles.baseline, own_seeds=study.repetitions.own_seeds) for part in parts]
    known = [own for own in losers if own is not None]
    return Fairness(
        accuracy=metrics.mean(_by_client(parts[0], label), axis=0),
        gain=gains[0],
        gain_over_local=None if alone is None else alone[0],
        worse=_share_below(gains),
        worse_than_alone=float("nan") if alone is None else _share_below(alone),
        losers=losers[0],
        clearly_worse=float(np.mean([own.clearly.sum() for own in known])) if known else float("nan"),
        tested=float(np.mean([own.tested for own in known])) if known else float("nan"),
        bottom_decile=estimate(study.in_scope(scores["bottom_decile"])),
        worst=estimate(study.in_scope(scores["worst"])),
    )


def _by_client(part: tuple[DrawRecords, ...], label: str) -> Doubles:
    """(runs, N) accuracy over the last ten rounds."""
    return np.concatenate([own.records.by_client(own.records.place(label), own.scope.tail)[own.scope.seeds] for own in part])


def _gain(part: tuple[DrawRecords, ...], label: str, other: str) -> Doubles:
    """(N,) mean gain of each client over the runs that both have."""
    return metrics.mean(_by_client(part, label) - _by_client(part, other), axis=0)


def _share_below(gains: list[Doubles]) -> float:
    """The share of clients that lose, mean over draws; equal is not worse."""
    shares = [float(np.mean(gain[np.isfinite(gain)] < -1e-12)) for gain in gains if np.isfinite(gain).any()]
    return float(np.mean(shares)) if shares else float("nan")


def _losers(part: tuple[DrawRecords, ...], label: str, other: str, *, own_seeds: bool) -> WorseOff | None:
    if any(own.records.hostile is not None for own in part):
        return None
    first = part[0].records
    places = first.place(label), first.place(other)
    ours, theirs = (np.stack([_right(own, place) for own in part]) for place in places)
    samples = np.stack([own.records.tested[own.scope.tail].mean(axis=0) for own in part])
    unlike = [differing_of(own.records, *places) for own in part]
    kept = np.stack([table for table in unlike if table is not None]) if all(table is not None for table in unlike) else None
    ended = np.isfinite(ours - theirs)
    whole = first.measure.whole
    if kept is not None and (kept[ended] >= 0).all():
        return worse_off(ours, theirs, samples, differing=np.where(ended, kept, np.nan), shared=not own_seeds, whole=whole)
    return worse_off(ours, theirs, samples, shared=not own_seeds) if whole else None


def _right(own: DrawRecords, method: int) -> Doubles:
    """(S, N) mean right answers over the last ten rounds; nan for a run that is not compared."""
    table = mean_right(own.records, own.scope.tail, method)
    out = np.setdiff1d(np.arange(len(table)), own.scope.seeds)
    table[out] = np.nan
    return table
