"""Natural-12: twelve sources of real data by natural client, under one protocol. Written before any of its results.

python studies/natural.py choose OUT [--only NAME]   # the learning rate of each federation, on a draw that is not used again
python studies/natural.py run OUT [--only NAME]      # inspect, then five methods with their controls over ten draws
python studies/natural.py collect OUT                # the small files of results/natural/, from which natural_page.py makes the page

The protocol, the same for all: softmax regression, 20 rounds of 3 local epochs in batches of 10; all clients take part where there are at
most 100, else 50 a round. A fifth of every client's samples is its test part; draws 100 to 109 of the split (and of the clients and
samples, where only some are used) with a seed each. The learning rate is FedAvg's best on validation parts (a fifth) of draw 99, and all
methods use it. 4 groups, or 2 where there are fewer than 10 clients: the right number is unknown. Clients with fewer than 10 samples
are left out where most have more, and a client keeps at most 500, so that states and airlines do not drown in data that hospitals lack.

The score is accuracy, mean of the last ten rounds. What is asked: which of five methods gains over FedAvg by an interval that holds over
draws and over test clients, Holm's correction over the five; and whether `inspect`, before any training, said so.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.comparison import open_comparison
from coterie.analysis.findings import Findings
from coterie.data.catalogue import load
from coterie.inspect import Inspection, inspect_data
from coterie.inspect.answers import write_answers
from coterie.inspect.recommendation import recommend
from coterie.methods.catalogue import build
from coterie.run.compare import compare
from coterie.run.study import study
from coterie.run.tuning import choose_rates, make_grid

FIRST, DRAWS, CHOOSING = 100, 10, 99
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ROUNDS, EPOCHS, COHORT = 20, 3, 50
TWELVE = {
    "heart": "heart",
    "clinics": "covid_clinics/natural(test=0.2,least=10,most=500)",
    "countries": "wvs_countries/natural(test=0.2,least=10,most=500)",
    "neighbourhoods": "minneapolis_stops/natural(test=0.2,least=10,most=500)",
    "states": "births_states/natural(test=0.2,least=10,most=500)",
    "carriers": "flights_carriers/natural(test=0.2,least=10,most=500)",
    "exercises": "watch_exercises/natural(test=0.2)",
    "readers": "goodreads/natural(test=0.2)",
    "tweeters": "sent140/natural(test=0.2,least=10)",
    "writers of digits": "qmnist/natural(clients=25,test=0.2)",
    "writers of letters": "femnist/natural(clients=15,test=0.2)",
    # the twelfth source, tests at schools, has two federations
    "lecturers": "insteval/natural(test=0.2,least=20)",
    "schools": "chem97/natural(test=0.2,least=20)",
}
METHODS = ("fedsim(clusters={})", "fedgroup(groups={})", "ifca(groups={})", "fesem(groups={})")
FINETUNED = "fedavg+finetune(epochs=5)"  # the fifth, which a comparison adds by itself
FILES = Path(__file__).resolve().parents[1] / "results" / "natural"


def methods_for(clients: int) -> list[str]:
    """The four that are named, with so many groups as the rule says."""
    return [method.format(2 if clients < 10 else 4) for method in METHODS]


def settings(clients: int) -> dict[str, Any]:
    """How all clients train."""
    return {"rounds": ROUNDS, "epochs": EPOCHS, "batch_size": 10, **({"cohort": COHORT} if clients > 100 else {})}


def choose(name: str, out: Path) -> None:
    """The rate at which FedAvg does best on validation parts of a draw that is not compared."""
    first, _, rest = TWELVE[name].partition("(")
    spec = "heart(validation=0.2)" if not rest else f"{first}({rest[:-1]},validation=0.2)"
    entries = make_grid([("fedavg", build("fedavg"))], RATES)
    made = study(
        [label for label, _ in entries], data=spec, data_seed=CHOOSING, seeds=[0], out=out / "rates" / name, **settings(_size(name))
    )
    found = choose_rates(made.evidence, [("fedavg", build("fedavg"))], RATES)["fedavg"]
    (out / f"{name}.rate.json").write_text(json.dumps({"rate": found.chosen, "validation": found.validation}))


def run(name: str, out: Path) -> None:
    """What is not yet there."""
    size, rate = _size(name), json.loads((out / f"{name}.rate.json").read_text())["rate"]
    told = out / f"{name}.inspect.json"
    if not told.exists():
        told.write_text(json.dumps(_inspected(inspect_data(TWELVE[name], data_seed=FIRST))))
    compare(
        methods_for(size),
        out=out / name,
        data=TWELVE[name],
        data_seed=FIRST,
        draws=DRAWS,
        seeds=(0,),
        lr=rate,
        resume=True,
        **settings(size),
    )


def _size(name: str) -> int:
    return len(load(TWELVE[name], FIRST))


def _inspected(found: Inspection) -> dict[str, Any]:
    """The answers in a few words, their numbers, and the recommendation."""
    differ, beyond, groups, pilot = (answer.short for answer in write_answers(found))
    assert found.beyond_labels is not None
    assert found.pilot is not None
    one, grouped, random = found.pilot.accuracies
    ways, advised = found.pilot.ways, recommend(found)
    assert ways is not None
    assert advised is not None
    return {
        "inspected": len(found.ids),
        "differ": differ,
        "differ_p": found.differ.p,
        "agreement": found.differ.agreement,
        "beyond": beyond,
        "beyond_p": found.beyond_labels.p,
        "structure": groups,
        "structure_p": found.groups.p_any,
        "pilot": pilot,
        "pilot_groups": found.groups.k,
        "pilot_one": one,
        "pilot_grouped": grouped,
        "pilot_random": random,
        "recommended": advised.way,
        **{f"way_{way}": ways.score(way) for way in ("one", "tuned", "alone", "groups")},
        "way_rate": ways.rate,
        "way_common": ways.common,
    }


def collect(out: Path, names: list[str]) -> None:
    """Three tables: a row a federation; a row a draw and method; a row a method with what cannot be computed from draws alone."""
    found = {name: open_comparison(out / name).federations[0] for name in names}
    FILES.mkdir(exist_ok=True)
    _write(FILES / "federations.csv", [_federation(name, found[name], out) for name in names])
    _write(FILES / "scores.csv", [row for name in names for row in _scores(name, found[name])])
    _write(FILES / "gains.csv", [row for name in names for row in _gains(name, found[name])])
    _check_again(found)


def _check_again(found: dict[str, Findings]) -> None:
    """The small tables give the gains and intervals that the evidence gives."""
    from natural_page import Tables

    tables = Tables.read()
    for name, own in found.items():
        for label in [*own.roles.methods, FINETUNED]:
            kept, known = tables.gap(name, label, own.roles.baseline), own.gap(label, own.roles.baseline)
            assert np.allclose([kept.mean, kept.low, kept.high, kept.p], [known.mean, known.low, known.high, known.p], atol=1e-5), (
                name,
                label,
            )


def _federation(name: str, found: Findings, out: Path) -> dict[str, Any]:
    federation = load(TWELVE[name], FIRST)
    shares = np.bincount(federation.y[federation.test.indices]) / len(federation.test.indices)
    told = {
        "federation": name,
        "data": TWELVE[name],
        "clients": len(federation),
        "train": len(federation.train.indices),
        "test": len(federation.test.indices),
        "features": int(np.prod(federation.input_shape)),
        "classes": len(federation.classes),
        "largest_class": round(float(shares.max()), 4),
        "licence": federation.provenance["licence"],
        "rate": json.loads((out / f"{name}.rate.json").read_text())["rate"],
        "draws": len(found.draws.each),
    }
    inspected = json.loads((out / f"{name}.inspect.json").read_text())
    return told | {key: round(value, 4) if isinstance(value, float) else value for key, value in inspected.items()}


def _scores(name: str, found: Findings) -> Iterator[dict[str, Any]]:
    for label in found.methods:
        for own, scores in zip(found.draws.each, found.draws.scores[label]["last10"], strict=True):
            yield {
                "federation": name,
                "method": label,
                "role": found.roles.of[label],
                "draw": own.records.settings.draws[0],
                "accuracy": round(float(scores.item()), 12),
            }


def _gains(name: str, found: Findings) -> Iterator[dict[str, Any]]:
    """The error over test clients, of the five methods against FedAvg and of each that groups against its closest control."""
    for label in [*found.roles.methods, FINETUNED]:
        controls = found.roles.controls.get(label, {})
        for against in [found.roles.baseline, *([controls["matched" if "matched" in controls else "random"]] if controls else [])]:
            gap = found.gap(label, against)
            clients = gap.sources.estimated["test clients"]
            row = {"federation": name, "method": label, "against": against, "mean": clients.mean, "error": clients.error}
            yield row | {"degrees": clients.degrees, "bound": clients.bound, "over": clients.over}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "run", "collect"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "collect":
        collect(args.out, args.only or list(TWELVE))
        return
    for name in args.only or TWELVE:
        {"choose": choose, "run": run}[args.what](name, args.out)


if __name__ == "__main__":
    main()
