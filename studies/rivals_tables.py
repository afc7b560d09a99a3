"""The small tables of results/rivals/, from the pieces of `rivals.py run`: one row for each world, method, stage and control.

What needs single clients is computed here: errors over test clients, clients that are clearly worse off, scores at equal bytes. Gains,
intervals over draws, tests, ranks and regrets are computed by the page.

A piece replaces all rows of its world and method; rows of which OUT has no piece are kept. So a study may be run in parts, and a folder of
pieces that is lost loses no result.
"""

import csv
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rivals import DRAWS, FILES, FIRST, METHODS, TAIL_ROUNDS, WORLDS, World, find_reason_not_to_run
from scipy import stats

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles
from coterie.data.content import get_redrawn
from coterie.statistics import LEVEL, Hits, compute_test_interval, find_worse_off
from coterie.statistics.clients import compute_sign_p

POINTS = [*range(FIRST, FIRST + DRAWS)]
BASELINE, ALONE = "fedavg", "local"


@dataclass(frozen=True)
class Variant:
    """One method at one stage, or its control with random groups, in one world."""

    world: str
    method: str
    name: str  # "served", "tuned", and the same with " random"
    stored: dict[str, Any]
    arrays: dict[str, Any]

    @property
    def stage(self) -> str:
        return self.name.split()[0]

    @property
    def control(self) -> str:
        return self.name.partition(" ")[2]

    @cached_property
    def scores(self) -> Doubles:
        """(draws,) accuracy over all test samples, mean of the last ten rounds."""
        return np.asarray(self.arrays["hits"].sum(axis=1, dtype=np.float64) / self.arrays["tests"].sum(axis=1))

    def scores_at(self, sent: Doubles) -> Doubles:
        """(draws,) the same of the rounds before a method has sent more than so many bytes."""
        found = []
        for curve, spent, most in zip(self.arrays["curve"], self.arrays["bytes"], sent, strict=True):
            last = max(int(np.searchsorted(spent, most * (1 + 1e-9), side="right")) - 1, 1)
            found.append(float(curve[max(last + 1 - TAIL_ROUNDS, 1) : last + 1].mean(dtype=np.float64)))
        return np.array(found)

    @property
    def sent(self) -> Doubles:
        """(draws,) bytes of a run."""
        return np.asarray(self.arrays["bytes"][:, -1])


def read_pieces(out: Path) -> tuple[list[Variant], list[dict[str, str]]]:
    """All variants; and what was not run and why."""
    found, missing = [], []
    for world in WORLDS:
        for method, entry in METHODS.items():
            path = out / "pieces" / world / f"{method}.npz"
            if not path.exists():
                why = find_reason_not_to_run(entry, WORLDS[world]) or _read_reason(out, world, method)
                missing.append({"world": world, "method": method, "stage": "", "why": why})
                continue
            with np.load(path) as file:
                arrays = dict(file)
            stored = json.loads(bytes(arrays.pop("stored")))
            for name, own in stored["variants"].items():
                if "not_run" in own:
                    missing.append({"world": world, "method": method, "stage": name, "why": own["not_run"]})
                else:
                    cut = len(name) + 1
                    mine = {key[cut:]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
                    found.append(Variant(world, method, name, own, mine))
    return found, missing


def _read_reason(out: Path, world: str, method: str) -> str:
    path = out / "not_run.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return next((row["why"] for row in rows if (row["world"], row["method"]) == (world, method)), "not run yet")


def collect(out: Path, files: Path = FILES) -> None:
    """Write the tables; rows of worlds and methods that have no piece in OUT stay as they are.

    Raises:
        UserError: If FedAvg has other scores in OUT than in the tables, so that kept rows would be compared with another run.
    """
    variants, missing = read_pieces(out)
    files.mkdir(parents=True, exist_ok=True)
    known = {(one.world, one.method, one.name): one for one in variants}
    pieces = {(one.world, one.method) for one in variants}
    scores = [_score_row(one, known) for one in variants]
    _check_baselines(scores, _read(files / "scores.csv"))
    _merge(files / "scores.csv", scores, pieces)
    gains = [row for one in variants for row in _gain_rows(one, known)]
    gains += [  # FedAvg has the same scores in OUT: what it gains on methods that have no piece there is still known
        row
        for row in _read(files / "gains.csv")
        if row["method"] == BASELINE and (row["world"], BASELINE) in pieces and (row["world"], row["against"]) not in pieces
    ]
    _merge(files / "gains.csv", gains, pieces)
    _merge(files / "costs.csv", [_cost_row(one) for one in variants if not one.control], pieces)
    kept = {row["world"]: row for row in _read(files / "worlds.csv") if (row["world"], BASELINE) not in pieces}
    _write(files / "worlds.csv", [_world_row(name, world, variants, kept.get(name, {})) for name, world in WORLDS.items()])
    scored = {(row["world"], row["method"]) for row in _read(files / "scores.csv")} - pieces
    refused = [row for row in _split_worlds(_read(files / "not_run.csv")) if row["stage"] and (row["world"], row["method"]) in scored]
    _write(files / "not_run.csv", _join_worlds([row for row in missing if (row["world"], row["method"]) not in scored] + refused))


def _check_baselines(rows: Sequence[dict[str, Any]], stored: Sequence[dict[str, str]]) -> None:
    draws = [f"d{draw}" for draw in POINTS]
    before = {(row["world"], row["stage"]): [row[name] for name in draws] for row in stored if row["method"] == BASELINE}
    for row in rows:
        if row["method"] == BASELINE and before.get((row["world"], row["stage"])) not in (None, [row[name] for name in draws]):
            raise UserError(
                f"FedAvg's scores in {row['world']} ({row['stage']}) are not those of the tables: kept rows would be compared with another "
                "run. Run all methods of that world again, and remove its rows first."
            )


def _merge(path: Path, rows: Sequence[dict[str, Any]], pieces: Set[tuple[str, str]]) -> None:
    """The new rows, and of those that are there the rows of which there is no piece, in the order of worlds and methods."""
    kept = [row for row in _read(path) if (row["world"], row["method"]) not in pieces]
    worlds, methods = list(WORLDS), list(METHODS)
    _write(path, sorted([*kept, *rows], key=lambda row: (worlds.index(row["world"]), methods.index(row["method"]))))


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _split_worlds(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, str]]:
    """One row for each world again."""
    for row in rows:
        yield from ({**row, "world": world} for world in row["worlds"].split())


def _join_worlds(missing: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """One row for each method, stage and reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in missing:
        found.setdefault((row["method"], row["stage"], row["why"]), []).append(row["world"])
    return [{"method": method, "stage": stage, "why": why, "worlds": " ".join(own)} for (method, stage, why), own in found.items()]


def _score_row(one: Variant, known: dict[tuple[str, str, str], Variant]) -> dict[str, Any]:
    """Accuracies in percent, of each draw: after as many steps as FedAvg, and after as many bytes."""
    row = {"world": one.world, "method": one.method, "stage": one.stage, "control": one.control}
    base = known.get((one.world, BASELINE, one.stage))
    by_bytes = np.full(DRAWS, np.nan) if base is None else one.scores_at(base.sent)
    row |= {f"d{draw}": f"{100 * value:.5f}" for draw, value in zip(POINTS, one.scores, strict=True)}
    return row | {f"b{draw}": f"{100 * value:.4f}" for draw, value in zip(POINTS, by_bytes, strict=True)}


def _gain_rows(one: Variant, known: dict[tuple[str, str, str], Variant]) -> Iterator[dict[str, Any]]:
    """Against FedAvg and clients alone at the same stage, and of a method that groups against its random groups."""
    if one.control:
        return
    others = {BASELINE: (BASELINE, one.stage), ALONE: (ALONE, one.stage), "random": (one.method, f"{one.name} random")}
    for title, (method, name) in others.items():
        other = known.get((one.world, method, name))
        if other is None or other is one:
            continue
        row = {"world": one.world, "method": one.method, "stage": one.stage, "against": title}
        interval = compute_test_interval(_pair_hits(one, other), overlap=_overlap(one))
        if isinstance(interval, str):
            continue
        numbers = {"mean": interval.mean, "error": interval.error, "degrees": interval.degrees}
        numbers |= {"worse": _share_worse(one, other), "lower": _share_lower(one, other)}
        yield row | {name: f"{value:.6g}" for name, value in numbers.items()} | {"bound": int(interval.bound), "over": interval.over}


def _pair_hits(one: Variant, other: Variant) -> list[Hits]:
    found = []
    for draw in range(DRAWS):
        ours, theirs, tests = (
            np.asarray(table[draw], dtype=np.float64) for table in (one.arrays["hits"], other.arrays["hits"], one.arrays["tests"])
        )
        differing = _count_differing(one, other, draw)
        found.append(Hits(ours[None, :, None], theirs[None, :, None], tests[:, None], None if differing is None else differing[None]))
    return found


def _count_differing(one: Variant, other: Variant, draw: int) -> Doubles | None:
    """(N,) the samples that exactly one of the two got right after its last round."""
    if "answers" not in one.arrays or "answers" not in other.arrays:
        return None
    return np.bitwise_count(one.arrays["answers"][draw] ^ other.arrays["answers"][draw]).sum(axis=-1).astype(np.float64)


def _overlap(one: Variant) -> float:
    """The share of a draw's test samples that is expected in another's."""
    if get_redrawn(WORLDS[one.world].data) == "everything":
        return 0.0
    tested, held = float(one.arrays["tests"].sum()), float(one.arrays["held"].sum())
    return tested / (tested + held)


def _share_worse(one: Variant, other: Variant) -> float:
    """The share of clients that are clearly worse off.

    Where a client is the same in all draws, by the test of `coterie compare`; else by a sign test of its samples in its one draw, with the
    false discovery rate over all clients of all draws.
    """
    hits = [np.asarray(each.arrays["hits"], dtype=np.float64) for each in (one, other)]
    tests = np.asarray(one.arrays["tests"], dtype=np.float64)
    counts = [_count_differing(one, other, draw) for draw in range(DRAWS)]
    if any(count is None for count in counts):
        return float("nan")
    lost = hits[1] - hits[0]
    differing = np.maximum(np.stack([count for count in counts if count is not None]), np.abs(lost))
    if has_same_clients(WORLDS[one.world]):
        found = find_worse_off(hits[0][:, None], hits[1][:, None], tests, differing=differing[:, None], shared=False)
        return float(found.significant.sum() / found.tested) if found.tested else float("nan")
    p = compute_sign_p(lost, differing)[tests > 0]
    return float(np.mean(stats.false_discovery_control(p) < LEVEL))


def _share_lower(one: Variant, other: Variant) -> float:
    """The share of clients with fewer right answers, which may be chance."""
    tested = one.arrays["tests"] > 0
    return float(np.mean((one.arrays["hits"] < other.arrays["hits"] - 1e-6)[tested]))


def has_same_clients(world: World) -> bool:
    """Whether a client of one draw is the same holder of data in the next."""
    return get_redrawn(world.data) == "split" and "clients=" not in world.data


def _cost_row(one: Variant) -> dict[str, Any]:
    """What was chosen, whether at an edge of the rates, and what a run cost."""
    own = one.stored
    rates = [rate for _, rate, score in own["trials"] if score is not None]
    row = {"world": one.world, "method": one.method, "stage": one.stage, "spec": own["spec"], "rate": own["rate"]}
    row |= {"rounds": one.arrays["curve"].shape[1] - 1, "trials": len(own["trials"]), "edge": int(own["rate"] in (min(rates), max(rates)))}
    costs = {
        "steps": own["steps"],
        "passes": own["passes"],
        "megabytes": float(one.sent.mean()) / 1e6,
        "server_seconds": own["server_seconds"],
    }
    return row | {name: f"{value:.5g}" for name, value in costs.items()}


def _world_row(name: str, world: World, variants: Sequence[Variant], kept: dict[str, str]) -> dict[str, Any]:
    """Its declaration, and its size by FedAvg's piece, or as it was known before."""
    base = next((one for one in variants if (one.world, one.method) == (name, BASELINE)), None)
    row: dict[str, Any] = {"world": name, "kind": world.kind, "severity": world.severity, "data": world.data, "model": world.model}
    row |= {"rounds": world.rounds, "cohort": world.cohort or ""}
    if base is None:
        return row | {column: kept.get(column, "") for column in ("clients", "train", "test")}
    tests = base.arrays["tests"]
    clients = int((tests > 0).sum(axis=1).mean())
    return row | {"clients": clients, "train": int(base.arrays["held"].mean()), "test": int(tests.sum(axis=1).mean())}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        path.unlink(missing_ok=True)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
