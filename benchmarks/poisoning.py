"""What malicious clients do to methods, with and without a guard: the tables of docs/reference/attacks-measured.md.

    python benchmarks/poisoning.py run OUT [--seeds 0-9] [--data digits] [--shares 0.2] [--data-dir DIR]
    python benchmarks/poisoning.py write OUT docs/reference/attacks-measured.md

`run` makes one JSON file a cell (a federation, an attack, a seed; all methods in it) and skips those that exist, so it can be stopped and
resumed. `write` puts the tables between the marks of the page.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.record_reader import read_records
from coterie.evidence.reader import read_notes
from coterie.evidence.settings import parse_seeds

GUARDS = ("+guard",)
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {
        "methods": "fedavg;simprox;fedsim(clusters=4);fedgroup(groups=4);fesem(groups=4);ifca(groups=4);robust(groups=4,trim=0.3)",
        "study": {"data": "digits/rotated(clients=40,groups=4)", "model": "mlp(64)", "epochs": 5, "lr": 0.1, "rounds": 20},
    },
    "mnist": {
        "methods": "fedavg;simprox;fedsim(clusters=5);fedgroup(groups=5);fesem(groups=5,warmup_by=cohort);ifca(groups=5)",
        "study": {"data": "mnist/powerlaw", "cohort": 20, "epochs": 5, "lr": 0.03, "rounds": 30},
    },
    "heart": {
        "methods": "fedavg;simprox;fedsim(clusters=2);fedgroup(groups=2);fesem(groups=2);ifca(groups=2);robust(groups=2,trim=0.3)",
        "guards": ("+guard", "+guard(least=3)"),  # of four replies the first leaves the method as it is
        "study": {"data": "heart", "epochs": 5, "lr": 0.05, "rounds": 20},
    },
}
KINDS = ("signflip", "scale", "noise", "labelflip", "backdoor", "count", "mimic")
SEEDS = 10  # of a whole column
REFUSED = ("MISCOUNTED", "TOO_FAR", "NOT_FINITE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "write"))
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--data", default="digits", choices=tuple(FEDERATIONS))
    parser.add_argument("--shares", default="0.2")
    parser.add_argument("--kinds", default=";".join(KINDS))
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    if given.verb == "write":
        write(given.out, given.page)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    shares = [float(share) for share in given.shares.split(",")]
    attacks = [None, *(f"{kind}(share={share:g})" for share in shares for kind in given.kinds.split(";"))]
    for seed in parse_seeds(given.seeds):
        for attack in attacks:
            path = given.out / f"{given.data}-{re.sub('[^a-z0-9.]+', '-', attack or 'none').strip('-')}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(cell(given.data, attack, seed, given.data_dir)))


def cell(data: str, attack: str | None, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """All methods of a federation under one attack, one seed."""
    federation = FEDERATIONS[data]
    methods = [
        name for base in federation["methods"].split(";") for name in (base, *(base + guard for guard in federation.get("guards", GUARDS)))
    ]
    rounds = federation["study"]["rounds"]
    result = ct.study(methods, seeds=[seed], attack=attack, evaluate_every=rounds, data_dir=data_dir, **federation["study"])
    records = read_records(result.evidence)
    malicious = np.zeros(len(records.ids), dtype=bool) if records.malicious is None else records.malicious[0]
    absences = result.evidence.frame("absences")
    absences = absences[absences["why"].isin(REFUSED) & (absences["round"] > 0)]
    success = {key.method: value for key, round_, value in read_notes(result.evidence, "backdoor_success") if round_ == rounds}
    found: dict[str, Any] = {}
    for place, label in enumerate(methods):
        refused = {(int(r), int(c)) for r, c in absences.loc[absences["method"] == label, ["round", "client"]].itertuples(index=False)}
        for key, round_, clients in read_notes(result.evidence, "held_out"):
            refused |= {(round_, client) for client in clients} if key.method == label and round_ else set()
        asked = rounds * (federation["study"].get("cohort") or len(malicious))
        lost = sum(not malicious[client] for _, client in refused)
        found[label] = {
            "accuracy": float(records.accuracy[place, 0, -1]),
            "honest_left_out": lost / (asked * float(np.mean(~malicious))),
            "hostile_left_out": (len(refused) - lost) / (asked * float(np.mean(malicious))) if malicious.any() else None,
            "backdoor": success.get(label),
            **groups_of(records, label, malicious),
        }
    return {"data": data, "attack": attack, "seed": seed, "methods": found}


def groups_of(records: Any, label: str, malicious: Any) -> dict[str, float | None]:
    """Of the last groups (FedSim's: all rounds'): malicious clients in groups that they lead, honest clients in the same."""
    if label in records.groups:
        last = records.groups[label][0, -1]
        made = [(np.flatnonzero(last >= 0), last[last >= 0])]
    else:
        made = list(records.clusters.get(label, {}).values())
    apart = among = bad = good = 0
    for clients, labels in made:
        for group in np.unique(labels):
            own = malicious[clients[labels == group]]
            led = own.sum() > (~own).sum()
            apart, among = apart + int(own.sum()) * led, among + int((~own).sum()) * led
            bad, good = bad + int(own.sum()), good + int((~own).sum())
    return {"hostile_apart": apart / bad if bad else None, "honest_among": among / good if good else None}


def write(out: Path, page: Path) -> None:
    """The tables of all cells, between their marks."""
    cells = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    text = page.read_text()
    for mark in re.findall(r"<!-- poisoning:([\w.-]+) -->", text):
        data, what, share = mark.split("-")
        made = "\n".join(table(cells, data, what, share)) or "Not run."
        begin = text.index("\n", text.index(f"<!-- poisoning:{mark} -->")) + 1
        text = text[:begin] + made + "\n" + text[text.index("<!-- end -->", begin) :]
    page.write_text(text)


def table(cells: list[dict[str, Any]], data: str, what: str, share: str) -> Iterator[str]:
    """One table: a row a method, a column an attack."""
    columns: list[tuple[str, str | None]] = [(kind, f"{kind}(share={int(share) / 100:g})") for kind in KINDS]
    columns = [("no attack", None), *columns] if what == "accuracy" else columns
    chosen = {title: [c for c in cells if c["data"] == data and c["attack"] == attack] for title, attack in columns}
    chosen = {
        title: found for title, found in chosen.items() if any(m[NAMES[what]] is not None for c in found for m in c["methods"].values())
    }
    if not chosen:
        return
    labels = list(next(iter(chosen.values()))[0]["methods"])
    if any(len(found) != SEEDS for found in chosen.values()):
        yield f"Seeds: {', '.join(f'{title} {len(found)}' for title, found in chosen.items())}."
        yield ""
    yield f"| method | {' | '.join(chosen)} |"
    yield f"| --- |{' ---: |' * len(chosen)}"
    for label in labels:
        values = [[c["methods"][label][NAMES[what]] for c in found] for found in chosen.values()]
        if any(value is not None for column in values for value in column):
            yield f"| `{label}` | {' | '.join(map(_shown, values))} |"


NAMES = {
    "accuracy": "accuracy",
    "expelled": "honest_left_out",
    "caught": "hostile_left_out",
    "backdoor": "backdoor",
    "apart": "hostile_apart",
    "among": "honest_among",
}


def _shown(values: list[float | None]) -> str:
    """The mean over seeds in %; a run that did not reach the end has none."""
    known = [100 * value for value in values if value is not None and np.isfinite(value)]
    return f"{np.mean(known):.1f}" if len(known) == len(values) else "–"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
