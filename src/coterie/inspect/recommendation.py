"""One recommendation out of an inspection: how clients should be served, why, and the command that comes next.

The simplest way within a quarter of a point of the best one in the pilot is recommended; groups only where random groups of the same sizes
rarely do as well. The two numbers of the rule were chosen on made-up worlds, none of which is judged by it
(docs/reference/inspect-calibration.md).
"""

from dataclasses import dataclass
from shlex import quote
from typing import Literal

from coterie.inspect.inspection import Inspection
from coterie.inspect.pilot import Pilot, ServingScores, ServingWay
from coterie.statistics.cross_fitting import FEW_CLIENTS

NEGLIGIBLE = 0.0025  # of the score: a simpler way may be so much behind
CHANCE_LEVEL = 0.2  # groups are not recommended where random groups do as well more often than this
SIMPLICITY_ORDER: tuple[ServingWay, ...] = ("one", "tuned", "alone", "groups")
WAY_NAMES: dict[ServingWay, str] = {
    "one": "one model",
    "tuned": "one model, fine-tuned",
    "groups": "a model for each group",
    "alone": "training alone",
}


@dataclass(frozen=True)
class ServingRecommendation:
    """What to do, why, and the next command."""

    way: ServingWay | Literal["more data"]
    title: str
    reason: str
    command: str

    def __str__(self) -> str:
        return f"Recommended: {self.title}. {self.reason}"


def recommend(found: Inspection, federation: str | None = None) -> ServingRecommendation | None:
    """The recommendation of an inspection; None without a pilot. With the folder of a real federation, the command launches there."""
    if found.pilot is None or found.pilot.ways is None:
        return None
    ways = found.pilot.ways
    if not ways.learned:
        command = _next_command(found, "more data", federation)
        return ServingRecommendation("more data", "more data first", _explain_unlearned(ways), command)
    way = choose_way(found.pilot)
    title = f"{found.groups.k} groups, a model each" if way == "groups" else WAY_NAMES[way]
    return ServingRecommendation(way, title, _explain_way(found.pilot, way), _next_command(found, way, federation))


def choose_way(pilot: Pilot) -> ServingWay:
    """The simplest way within a quarter of a point of the best."""
    ways = pilot.ways
    assert ways is not None
    few = len(ways.clients) < FEW_CLIENTS  # of few clients nearly every random grouping is nearly the same one
    known = [way for way in SIMPLICITY_ORDER if way != "groups" or few or pilot.p_random <= max(CHANCE_LEVEL, 1 / (len(pilot.random) + 1))]
    best = max(ways.score(way) for way in known)
    return next(way for way in known if ways.score(way) >= best - NEGLIGIBLE)


def _explain_way(pilot: Pilot, way: ServingWay) -> str:
    ways = pilot.ways
    assert ways is not None
    scores = ", ".join(f"{WAY_NAMES[each]} {100 * ways.score(each):.1f}" for each in SIMPLICITY_ORDER)
    scores = f"In the pilot (score in %, on samples that did not train): {scores}."
    if way == "one":
        return f"{scores} No other way is ahead of it by more than a quarter of a point."
    gain, error = ways.gain(way)
    return f"{scores} It is {100 * gain:+.1f} ± {200 * error:.1f} points from one model."


def _explain_unlearned(ways: ServingScores) -> str:
    best = max(ways.credits, key=ways.score)
    return (
        f"The pilot has not learned: {WAY_NAMES[best]} reaches {100 * ways.score(best):.1f} %, always answering the most common class "
        f"{100 * ways.common:.1f} %. Collect more samples, check features and labels, or let the pilot train longer (--rounds 50)."
    )


def _next_command(found: Inspection, way: ServingWay | Literal["more data"], federation: str | None) -> str:
    ways = found.pilot.ways if found.pilot is not None else None
    rate = f" --lr {ways.rate:g}" if ways is not None else ""
    model = "" if found.model == "mclr" else f" --model {quote(found.model)}"
    methods = {"one": "fedavg", "tuned": "'fedavg+finetune(epochs=5)'", "alone": "local", "groups": f"'fedgroup(groups={found.groups.k})'"}
    if way == "more data":
        again = f"coterie inspect --federation {quote(federation)} --rounds 50" if federation is not None else ""
        return again or f"coterie data {quote(found.data)} --check"
    if federation is not None:
        return f"coterie launch fedavg {methods[way]} --federation {quote(federation)}{model}{rate}".replace("fedavg fedavg ", "fedavg ")
    if way == "groups":
        return f"coterie compare {methods[way]} --data {quote(found.data)}{model}{rate} --draws 10 --out runs/groups"
    return f"coterie run {methods[way]} --data {quote(found.data)}{model}{rate} --out runs/{way}"
