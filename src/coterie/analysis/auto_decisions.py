"""What `auto` decided: read from the notes of its rounds, summed up in a sentence and a table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.formatting import format_count
from coterie.evidence.reader import Evidence

if TYPE_CHECKING:
    import pandas as pd

NOTE = "auto"  # the note that `methods.auto` writes in the round of its decision


@dataclass(frozen=True)
class AutoDecision:
    """The decision of one run."""

    draw: int
    method: str
    seed: int
    values: Mapping[str, Any]  # as `describe_decision` wrote them

    @property
    def served(self) -> dict[str, int]:
        """By option, the number of clients, the largest first."""
        found = {option["option"]: option["clients"] for option in self.values["options"] if option["clients"]}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def read_decisions(evidence: Evidence) -> list[AutoDecision]:
    """The decisions of all runs of `auto` in a study, in the order of the evidence."""
    notes = evidence.frame("notes")
    found = notes[notes["name"] == NOTE]
    rows = found[["draw", "method", "seed", "value"]].itertuples(index=False)
    return [AutoDecision(int(draw), str(method), int(seed), json.loads(value)) for draw, method, seed, value in rows]


def describe_decision(decision: AutoDecision) -> str:
    """The decision in two sentences: what clients are served, and what is expected of it."""
    values = decision.values
    served = "; ".join(f"{format_count(clients, 'client')} {explain_option(option)}" for option, clients in decision.served.items())
    missing = ", ".join(values.get("left_out", ()))
    left_out = f" Not considered, since clients are too few, too many or may not answer: {missing}." if missing else ""
    gain, low, high = (100 * values[name] for name in ("gain", "low", "high"))
    if set(decision.served) == {values["options"][0]["option"]}:
        best = max(values["options"][1:], key=lambda option: option["gain"], default=None)
        why = (
            ""
            if best is None
            else f" The best other option, {best['option']}, gains {100 * best['gain']:+.1f} points ({_show_p(best['p'])})."
        )
        return f"{decision.method} serves all clients {explain_option(values['options'][0]['option'])}.{why}{left_out}"
    worst = 100 * values["expected_worst"]
    loss = f"the largest expected loss of a client is {-worst:.1f} points" if worst <= -0.05 else "no client is expected to lose"
    corrected = values.get("p_adjusted")  # runs of earlier versions do not have it
    tested = "" if corrected is None else f", {_show_p(corrected)} as the best of {len(values['options'])} options"
    return (
        f"{decision.method} serves {served}. Cross-fitted gain of {values['chosen']}: {gain:+.1f} points "
        f"(95 % CI {low:+.1f} to {high:+.1f}{tested}); {loss}.{left_out}"
    )


def _show_p(p: float) -> str:
    return f"p {p:.2f}" if p >= 0.005 else "p < 0.01"


def explain_option(option: str) -> str:
    """An option in words."""
    name, _, tuned = option.partition("+finetune(epochs=")
    words = {"local": "a model trained alone", "structured": "the model of their group", "continuum": "a weighted mean of their own"}
    text = words.get(name, "the common model")
    return f"{text}, fine-tuned for {format_count(int(tuned.rstrip(')')), 'epoch')}" if tuned else text


def make_decision_table(decisions: list[AutoDecision]) -> "pd.DataFrame":
    """One row an option: how often it led, its mean score and gain over runs, and the clients it serves. The standard error is that of a
    typical run (their root mean square), and so is the interval; p is the median."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    chosen = [decision.values["chosen"] for decision in decisions]
    for decision in decisions:
        for option in decision.values["options"]:
            rows.setdefault(option["option"], []).append(option)
    table = {
        name: {
            "runs": len(own),
            "chosen": chosen.count(name),
            "score": float(np.mean([each["score"] for each in own])),
            "gain": (gain := float(np.mean([each["gain"] for each in own]))),
            "error": (error := float(np.sqrt(np.mean([each["error"] ** 2 for each in own])))),
            "low": gain - 1.96 * error,
            "high": gain + 1.96 * error,
            "p": float(np.median([each["p"] for each in own])),
            "clients": float(np.mean([each["clients"] for each in own])),
        }
        for name, own in rows.items()
    }
    import pandas as pd  # heavy, and not needed to run

    return pd.DataFrame.from_dict(table, orient="index").sort_values("score", ascending=False)


def group_decisions(evidence: Evidence) -> dict[str, list[AutoDecision]]:
    """The decisions of each method that chooses, in the order of the evidence."""
    by_method: dict[str, list[AutoDecision]] = {}
    for decision in read_decisions(evidence):
        by_method.setdefault(decision.method, []).append(decision)
    return by_method


def summarize_decisions(evidence: Evidence) -> list[str]:
    """A sentence for each method that chooses: of one run its decision, of several how often each option led."""
    remarks = []
    for label, own in group_decisions(evidence).items():
        if len(own) == 1:
            remarks.append(describe_decision(own[0]))
            continue
        table = make_decision_table(own)
        led = ", ".join(f"{name} in {count}" for name, count in table["chosen"].sort_values(ascending=False).items() if count)
        gains = [100 * decision.values["gain"] for decision in own]
        gain = f"cross-fitted gain {np.mean(gains):+.1f} points on average"
        remarks.append(f"{label} chose {led} of {len(own)} runs; {gain}. Last: {describe_decision(own[-1])}")
    return remarks
