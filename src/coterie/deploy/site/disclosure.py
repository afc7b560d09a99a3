"""Disclosure control: rounding and withholding of sample counts, steps, losses, errors, evaluation counts and sums in replies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import floor, log, log10
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Ints
from coterie.core.asks import Ask, Errors, Evaluate, Evaluated, Gradients, LossTable, Reply, Trained
from coterie.core.descriptions import Described, Subspaces
from coterie.core.serving import COMBINED
from coterie.core.survival import BRIER_LIMIT, EVENTS_LIMIT, LEAST_KNOWN
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.deploy.site.policy import Policy

HUNDRED = 100  # samples that a client claims where their number is withheld
GRIDS = (1, 2, 5, 10, 20, 50, HUNDRED)  # of a hundred


def compute_loss_limit(classes: int) -> float:
    """What the loss of one sample counts at most: twice that of a guess among the classes, and one more."""
    return 2 * log(max(classes, 2)) + 1


def hash_models(ask: Ask[Any]) -> list[list[bytes]]:
    """For each client of an ask, hashes of the models on which it is evaluated; none for other asks."""
    if isinstance(ask, Evaluate):
        serving = ask.serving
        models = [_hash_values(model) for model in serving.models]
        settings = {} if serving.combiner is None else vars(serving.combiner)
        combiner = [_hash_values(value) if isinstance(value, np.ndarray) else repr(value).encode() for value in settings.values()]
        mixed = _join_bytes(type(serving.combiner).__name__.encode(), *combiner, *models)
        places = zip(serving.rows.tolist(), serving.places.tolist(), strict=True)
        return [[_join_bytes(mixed, str(place).encode()) if row == COMBINED else models[row]] for row, place in places]
    if getattr(ask, "every_model", False):
        each = [_hash_values(model) for model in ask.models]  # type: ignore[attr-defined]
        return [each] * len(ask.clients)  # type: ignore[attr-defined]
    return []


@dataclass(frozen=True)
class RoundingContext:
    """What an answer is rounded by: the data it is about, which part of them, and which models."""

    about: str  # kind, part and share
    data: Sequence[str]  # for each row of the reply, the hash of the client's data
    samples: Ints  # (n,) of the part and share asked about
    models: Sequence[Sequence[bytes]]  # for each row, hashes of the models


class Discloser:
    """Rounds and withholds by a policy; `secret` is the site's."""

    def __init__(self, policy: Policy, secret: str, classes: int, task: Task = CLASSIFICATION) -> None:
        self.policy, self.secret, self.limit, self.classes = policy, bytes.fromhex(secret), compute_loss_limit(classes), classes
        self.task = task

    @property
    def rounds(self) -> bool:
        return self.policy.rounding > 1

    def disclose_reply(self, reply: Reply, part: str, question: RoundingContext, *, noised: bool = False) -> Reply:
        """The reply as it may leave; `noised` numbers are not rounded, too."""
        if isinstance(reply, Evaluated) and not noised:
            reply = self._evaluated(reply, part, question)
        elif isinstance(reply, LossTable) and self.rounds and not noised:
            reply = replace(reply, losses=self._rounded(reply.losses, self.limit, question))
        elif isinstance(reply, Errors) and self.rounds and not noised:
            worst = (float((self.classes - 1) ** 2), 1.0) if self.task.counts_classes else (1 / LEAST_KNOWN,) * 2
            labels, chances = (
                self._rounded(values**2, most, question, name)
                for values, most, name in ((reply.labels, worst[0], "l"), (reply.probabilities, worst[1], "p"))
            )
            reply = replace(reply, labels=np.sqrt(labels), probabilities=np.sqrt(chances))
        elif isinstance(reply, Gradients) and self.rounds and not noised and reply.losses.any():  # zeros beside a sketch disclose nothing
            reply = replace(reply, losses=self._round_columns(np.minimum(reply.losses, self.limit)[:, None], self.limit, question)[:, 0])
        elif isinstance(reply, Trained) and self.rounds and not noised:
            reply = replace(
                reply,
                losses=self._round_columns(np.minimum(reply.losses, self.limit), self.limit, question, "losses"),
                summary=self._round_columns(reply.summary, 1.0, question, "summary"),
            )
        if isinstance(reply, Described | Subspaces):
            reply = self._describe(reply)
        if self.policy.discloses_sizes:
            return reply
        withheld = [name for name in ("sizes", "steps") if name in reply.columns()]  # steps disclose samples, too
        return replace(reply, **{name: np.ones_like(getattr(reply, name)) for name in withheld})

    def _describe(self, reply: Described | Subspaces) -> Reply:
        """Classes of fewer samples than a client answers from look like classes that it has none of; counts leave where sizes do."""
        kept = reply.counts >= self.policy.minimum_samples
        counts = np.where(kept, reply.counts if self.policy.discloses_sizes else 1, 0)
        if isinstance(reply, Subspaces):
            return replace(reply, counts=counts, bases=np.where(kept[..., None, None], reply.bases, np.float32(0)))
        return replace(reply, counts=counts, means=reply.means * kept[..., None], deviations=reply.deviations * kept[..., None])

    def round_count(self, rows: int, *about: str) -> int:
        """A count of rows in multiples of what is rounded to; the same question has the same answer."""
        base = self.policy.rounding
        if not self.rounds:
            return rows
        return base * int(round_randomly(rows / base, 1.0, self._draw(b"rows", str(rows).encode(), *(each.encode() for each in about))))

    def tests(self, actual: Ints, data: Sequence[str]) -> Ints:
        """(n, C) the test samples by class on a site's card."""
        if not self.policy.discloses_classes:
            return np.zeros_like(actual)
        return np.array([self._totals(row, name, "test") for row, name in zip(actual, data, strict=True)], np.int64).reshape(actual.shape)

    def _round_columns(self, values: Doubles, most: float, question: RoundingContext, name: str = "") -> Doubles:
        """The same of numbers that leave beside a model or gradient: each column has one rounding for all models."""
        columns = [b"" if j == 0 else str(j).encode() for j in range(values.shape[1])]
        return self._rounded(values, most, replace(question, models=[columns] * len(values)), name)

    def _rounded(self, values: Doubles, most: float, question: RoundingContext, name: str = "") -> Doubles:
        """(n, k) means over samples of what is at most `most` for each of them."""
        made = np.empty_like(values)
        for i, samples in enumerate(question.samples.tolist()):
            step = self._step(most, samples)
            for j, model in enumerate(question.models[i]):
                made[i, j] = round_randomly(values[i, j], step, self._chance(question, i, model, name))
        return made

    def _step(self, most: float, samples: int) -> float:
        """What so many samples as are rounded to can change of a mean. Where the number of samples is withheld, it is no multiple of it."""
        step = most * self.policy.rounding / max(samples, 1)
        return step if self.policy.discloses_sizes else round_up_step(step)

    def _chance(self, question: RoundingContext, row: int, model: bytes, name: str = "") -> float:
        return self._draw(question.about.encode(), question.data[row].encode(), model, name.encode())

    def _draw(self, *parts: bytes) -> float:
        """A number in [0, 1) that only this site can draw."""
        word = blake2b(_join_bytes(*parts), digest_size=8, key=self.secret).digest()
        return (int.from_bytes(word, "little") >> 11) * 2.0**-53

    def _totals(self, actual: Ints, data: str, part: str) -> Ints:
        """(C,) samples by class: the same whatever model is asked about."""
        if not self.rounds or not actual.sum():
            return np.asarray(actual)
        base = self.policy.rounding
        total = max(1, int(round_randomly(actual.sum() / base, 1.0, self._draw(b"total", data.encode(), part.encode()))))
        return base * apportion(actual, total)

    def _evaluated(self, reply: Evaluated, part: str, question: RoundingContext) -> Evaluated:
        """Classes of training parts leave only where asks about them are answered anyway."""
        details = self.policy.discloses_classes and (part != "train" or self.policy.label_shares)
        if not self.task.counts_classes:
            return self._evaluated_times(reply, part, question, details=details)
        if not self.rounds:
            reply = reply if details else merge_classes(reply)
            return reply if self.policy.discloses_sizes else scale_to_hundred(reply)
        losses = self._rounded(np.minimum(reply.loss, self.limit)[:, None], self.limit, question, "loss")[:, 0]
        auroc = np.array(reply.auroc)
        counts: dict[str, Any] = {name: np.zeros_like(getattr(reply, name)) for name in ("hits", "predicted", "actual")}
        for i in np.flatnonzero(reply.actual.sum(axis=1)).tolist() if reply.actual.shape[1] else []:
            row = [getattr(reply, name)[i] for name in ("hits", "predicted", "actual")]
            share = row[0].sum() / row[2].sum()
            chance = self._chance(question, i, question.models[i][0], "hits")
            if not self.policy.discloses_sizes:
                grid = next(each for each in GRIDS if each >= min(HUNDRED, HUNDRED * self.policy.rounding / row[2].sum()))
                right = grid * round_randomly(HUNDRED * share / grid, 1.0, chance)
                for name, count in (("hits", right), ("predicted", HUNDRED), ("actual", HUNDRED)):
                    counts[name][i, 0] = count
            else:
                self._count(counts, i, row, chance, question.data[i], part, details=details)
            fewest = int(row[2].min())
            if fewest < self.policy.rounding or not np.isfinite(auroc[i]):
                auroc[i] = np.nan  # a rare class looks like one that is not there
            else:
                step = round_up_step(self.policy.rounding / fewest)
                auroc[i] = min(1.0, round_randomly(auroc[i], step, self._chance(question, i, question.models[i][0], "auroc")))
        return replace(reply, loss=losses, auroc=auroc, **counts)

    def _evaluated_times(self, reply: Evaluated, part: str, question: RoundingContext, *, details: bool) -> Evaluated:
        """Of survival times: means over samples and shares of pairs, rounded to what so many samples can change, times the samples and
        pairs that are disclosed. How many events there are is withheld as counts by class are."""
        sums = reply.sums.copy()
        for i in np.flatnonzero(sums[:, 0] > 0).tolist():
            sums[i] = self._round_times(sums[i], part, question, i)
            if not details:
                sums[i, [3, 6]] = 0.0
        if not self.rounds:
            return replace(reply, sums=sums)
        losses = self._rounded(np.minimum(reply.loss, self.limit)[:, None], self.limit, question, "loss")[:, 0]
        return replace(reply, loss=losses, sums=sums)

    def _round_times(self, row: Doubles, part: str, question: RoundingContext, i: int) -> Doubles:
        """The sums of one client, in the order of `core.tasks.SUMS`."""
        n, brier, concordant, expected, usual, pairs, events = row.tolist()
        means = [brier / n, expected / n, usual / n, events / n]
        share, shown = (concordant / pairs if pairs else 0.0), n
        if self.rounds:
            model, data = question.models[i][0], replace(question, about=f"{part} times")
            limits = (BRIER_LIMIT, EVENTS_LIMIT, BRIER_LIMIT, 1.0)
            # what no model changes is rounded alike for all of them
            chances = [self._chance(question, i, model, name) for name in ("brier", "expected")]
            chances += [self._chance(data, i, b"", name) for name in ("usual", "events")]
            steps = [self._step(most, int(n)) for most in limits]
            means = [
                round_randomly(min(mean, most), step, chance)
                for mean, most, step, chance in zip(means, limits, steps, chances, strict=True)
            ]
            means[3] = min(means[3], 1.0)
            touched = self.policy.rounding * (n - 1)  # pairs that so many samples are in
            if pairs:
                step = round_up_step(min(touched / pairs, 1.0))
                share = min(round_randomly(share, step, self._chance(question, i, model, "pairs")), 1.0)
                pairs = round_randomly(pairs, touched, self._chance(data, i, b"", "pairs")) or touched
            shown = float(self._totals(np.array([int(n)]), question.data[i], part).sum())
            pairs = min(pairs, shown * (shown - 1) / 2)
        if not self.policy.discloses_sizes:
            shown, pairs = float(HUNDRED), float(HUNDRED) if pairs else 0.0
        brier, expected, usual, events = (shown * mean for mean in means)
        return np.array([shown, brier, share * pairs, expected, usual, pairs, events])

    def _count(self, counts: dict[str, Any], i: int, row: list[Ints], chance: float, data: str, part: str, *, details: bool) -> None:
        """Counts of one client in multiples of what is rounded to. They fit each other: no more hits than samples or predictions of a
        class, as many predictions as samples."""
        hits, predicted, actual = row
        base = self.policy.rounding
        totals = self._totals(actual, data, part) // base
        right = int(round_randomly(totals.sum() * hits.sum() / actual.sum(), 1.0, chance))
        if not details:
            for name, count in (("hits", right), ("predicted", totals.sum()), ("actual", totals.sum())):
                counts[name][i, 0] = base * count
            return
        shared = apportion(hits, right, totals)
        counts["actual"][i], counts["hits"][i] = base * totals, base * shared
        counts["predicted"][i] = base * (shared + apportion(predicted - hits, int(totals.sum()) - right))


def round_randomly(value: float, step: float, chance: float) -> float:
    """The multiple of a step below or above a value, as the chance in [0, 1) decides: the mean over chances is the value."""
    return step * floor(value / step + chance) if np.isfinite(value) else value


def round_up_step(step: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is no smaller."""
    power = 10.0 ** floor(log10(step))
    return next((times * power for times in (1, 2, 5) if times * power >= step * (1 - 1e-12)), 10 * power)


def apportion(counts: Ints, units: int, most: Ints | None = None) -> Ints:
    """So many units, shared out by these counts (largest remainders first), at most so many each."""
    room = np.full(len(counts), units) if most is None else most
    share = units * counts / max(int(counts.sum()), 1)
    made = np.minimum(np.floor(share), room).astype(np.int64)
    order = np.argsort(made - share, kind="stable")
    while (missing := units - int(made.sum())) > 0 and (made < room).any():
        made[order[made[order] < room[order]][:missing]] += 1
    return made


def merge_classes(reply: Evaluated) -> Evaluated:
    """All samples as one class: accuracy, loss and AUROC stay, precision and recall have no meaning any more."""
    return make_one_class(reply, reply.hits.sum(axis=1), reply.actual.sum(axis=1))


def scale_to_hundred(reply: Evaluated) -> Evaluated:
    """As if each client that has test samples had a hundred, so that their number stays withheld."""
    share = reply.hits.sum(axis=1) / np.maximum(reply.actual.sum(axis=1), 1)
    return make_one_class(reply, np.rint(HUNDRED * share), HUNDRED)


def make_one_class(reply: Evaluated, hits: Any, totals: Any) -> Evaluated:
    """Right answers among so many samples, all as one class; none where a client has no samples."""
    held = reply.actual.sum(axis=1) > 0
    made: dict[str, Any] = {name: np.zeros_like(getattr(reply, name)) for name in ("hits", "predicted", "actual")}
    for name, count in (("hits", hits), ("predicted", totals), ("actual", totals)):
        if made[name].shape[1]:
            made[name][:, 0] = np.where(held, count, 0)
    return replace(reply, **made)


def _hash_values(values: Any) -> bytes:
    return blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _join_bytes(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
