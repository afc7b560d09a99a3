"""What `watch` noticed: read from the notes of its looks, summed up in a sentence and a table."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie._util.formatting import format_count
from coterie.evidence.reader import Evidence

if TYPE_CHECKING:
    import pandas as pd

NOTE = "watch"  # the note that `methods.watch` writes at each look
MAX_NAMED = 3  # alarms, and clients of one, named one by one
COLUMNS = ["draw", "method", "seed", "round", "unit", "clients", "statistic", "threshold", "before", "now"]


@dataclass(frozen=True)
class Alarm:
    """One alarm of one run."""

    draw: int
    method: str
    seed: int
    round_: int
    unit: str  # the client's id, or the group
    clients: tuple[str, ...]  # the ids of the clients that count as changed
    statistic: float  # log of the e-value
    threshold: float  # log of what it had to reach
    before: float  # error of the reference, between 0 and 1
    now: float


def read_alarms(evidence: Evidence) -> tuple[dict[str, int], list[Alarm]]:
    """By method that watches, the number of its looks in all runs; and all alarms, in the order of the evidence."""
    notes = evidence.frame("notes")
    found = notes[notes["name"] == NOTE]
    ids = {draw: [str(name) for name in roster.column("id").to_pylist()] for draw, roster in evidence.rosters.items()}
    looks: dict[str, int] = {}
    alarms = []
    for draw, method, seed, round_, value in found[["draw", "method", "seed", "round", "value"]].itertuples(index=False):
        looks[str(method)] = looks.get(str(method), 0) + 1
        look = json.loads(value)
        for alarm in look["alarms"]:
            names = tuple(ids[draw][client] for client in alarm["clients"])
            unit = ids[draw][alarm["which"]] if alarm["kind"] == "client" else f"group {alarm['which']}"
            numbers = (float(number) for number in (alarm["statistic"], look["threshold"], alarm["before"], alarm["now"]))
            alarms.append(Alarm(int(draw), str(method), int(seed), int(round_), unit, names, *numbers))
    return looks, alarms


def make_alarm_table(alarms: list[Alarm]) -> "pd.DataFrame":
    """One row an alarm."""
    import pandas as pd  # heavy, and not needed to run

    rows = [[a.draw, a.method, a.seed, a.round_, a.unit, ", ".join(a.clients), a.statistic, a.threshold, a.before, a.now] for a in alarms]
    return pd.DataFrame(rows, columns=COLUMNS)


def summarize_alarms(evidence: Evidence) -> list[str]:
    """A sentence for each method that watches."""
    looks, alarms = read_alarms(evidence)
    remarks = []
    for method, count in looks.items():
        own = [alarm for alarm in alarms if alarm.method == method]
        if not own:
            remarks.append(f"{method}: no change was noticed in {format_count(count, 'look')}.")
            continue
        runs = len({(alarm.draw, alarm.seed) for alarm in own})
        named = "; ".join(_describe(alarm) for alarm in own[:MAX_NAMED])
        more = f"; and {len(own) - MAX_NAMED} more" if len(own) > MAX_NAMED else ""
        where = f" in {format_count(runs, 'run')}" if runs > 1 else ""
        remarks.append(f"{method}: {format_count(len(own), 'alarm')} in {format_count(count, 'look')}{where}: {named}{more}.")
    return remarks


def _describe(alarm: Alarm) -> str:
    change = f"error {100 * alarm.before:.0f} % to {100 * alarm.now:.0f} %"
    return f"{alarm.unit} in round {alarm.round_} ({change}, e-value {format_evalue(alarm.statistic)})"


def format_evalue(statistic: float) -> str:
    """An e-value of which the log is given.

    >>> format_evalue(3.0), format_evalue(20.0)
    ('20', '5e+08')
    """
    return f"{2.718281828459045**statistic:.0f}" if statistic < 12 else f"{2.718281828459045 ** min(statistic, 700.0):.0e}"
