"""How often `watch` raises an alarm while nothing has changed, and how soon it notices a change.

python -m benchmarks.false_alarms                  # prints both tables as Markdown
python -m benchmarks.false_alarms --write FILE     # puts them between their marks in a page

Every look brings new samples, as in a federation that lives. In the first table errors are drawn from coins, and from losses that lie
between 0 and 1. In the second the wrapper runs around methods that train; every `every` rounds all clients get new samples of the same
distributions, in training parts and in validation parts.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.formatting import format_markdown_table
from coterie.core.arrays import Array, Doubles
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.statistics.change import KEPT, ChangeTest
from coterie.testing.play import play

EVERY, RATE, MARGIN = 5, 0.005, 0.05  # the defaults of `watch`
LOOKS, RUNS = 60, 50
CLIENTS = 40
RISES = (0.2, 0.4, 0.6)
CASES = [*(("coin", samples) for samples in (10, 30, 100, 1000)), *(("loss", samples) for samples in (10, 30, 100))]
ERRORS = (0.05, 0.2, 0.5)
DELAYS = [(samples, error) for samples in (10, 30, 100, 1000) for error in (0.1, 0.3)]
FEATURES, CLASSES, SAMPLES, GROUPS = 10, 4, 30, 2
ROUNDS, SEEDS = 200, 10
METHODS = ("fedavg", "ifca(groups=2)", "fedgroup(groups=2)")


def draw(rng: np.random.Generator, kind: str, error: Doubles, samples: int) -> Doubles:
    """(runs, clients) mean errors of new samples."""
    if kind == "coin":
        return np.asarray(rng.binomial(samples, error) / samples)
    drawn = rng.beta(2 * error[..., None], 2 * (1 - error[..., None]), size=(*error.shape, samples))  # most near 0 or 1
    return np.asarray(drawn.mean(axis=-1))


def run_looks(samples: int, error: float, kind: str, looks: int, rise: float = 0.0) -> tuple[int, list[int]]:
    """Looks with a false alarm over all runs, and, where the first client's error rises at once, the look of its alarm in each run."""
    rng = make_generator(make_key("looks", kind, samples, int(1000 * error), int(1000 * rise)))
    test, errors = ChangeTest(RATE * EVERY, MARGIN), np.full((RUNS, CLIENTS), error)
    count = np.full((RUNS, CLIENTS), float(samples))
    reference, sums, counts = draw(rng, kind, errors, samples), *np.zeros((2, RUNS, CLIENTS, KEPT))
    errors[:, 0] = min(error + rise, 1.0)
    alarms, found = 0, np.zeros(RUNS, np.int64)
    for look in range(1, looks + 1):
        sums = np.concatenate([(draw(rng, kind, errors, samples) * samples)[..., None], sums[..., :-1]], axis=2)
        counts = np.concatenate([count[..., None], counts[..., :-1]], axis=2)
        flat = (reference.ravel(), count.ravel(), sums.reshape(-1, KEPT), counts.reshape(-1, KEPT))
        statistics = test.compute_statistics(*flat).reshape(RUNS, CLIENTS)
        changed = np.stack([test.find_changed(own)[0] for own in statistics])
        found = np.where((found == 0) & changed[:, 0], look, found)
        alarms += int(changed[:, (1 if rise else 0) :].any(axis=1).sum())
        reference = np.where(changed, draw(rng, kind, errors, samples), reference)  # those named get a new one
        sums, counts = np.where(changed[..., None], 0.0, sums), np.where(changed[..., None], 0.0, counts)
    return alarms, found[found > 0].tolist()


def make_drawn_world(seed: int, *, validation: bool, phases: int) -> World:
    """Clients of two groups of class means; each phase has other samples of the same distributions."""
    rng = make_generator(make_key(seed, "world"))
    means = 1.0 * rng.normal(size=(GROUPS, CLASSES, FEATURES))
    made = [_draw_phase(make_generator(make_key(seed, "phase", i)), means, validation) for i in range(phases)]
    return World.from_spec(made[0].replace(later=tuple((1 + i * EVERY, phase) for i, phase in enumerate(made) if i)), "mclr")


def _draw_phase(rng: np.random.Generator, means: Doubles, validation: bool) -> Federation:
    size = SAMPLES * (2 if validation else 1) + 5
    groups = np.arange(CLIENTS) % GROUPS
    y = rng.integers(CLASSES, size=(CLIENTS, size))
    x = (means[groups[:, None], y] + 1.2 * rng.normal(size=(CLIENTS, size, FEATURES))).astype(np.float32)
    cuts: list[list[Array]] = [np.split(i * size + np.arange(size), [SAMPLES, size - 5]) for i in range(CLIENTS)]
    parts = [Parts.from_lists([own[j] for own in cuts]) for j in range(3)]
    return Federation(
        name="drawn",
        x=x.reshape(-1, FEATURES),
        y=y.reshape(-1),
        classes=tuple("abcd"),
        ids=tuple(f"client-{i}" for i in range(CLIENTS)),
        train=parts[0],
        validation=parts[1] if validation else None,
        test=parts[2],
    )


def count_alarms(method: str, on: str, *, validation: bool) -> tuple[int, int]:
    """Rounds with an alarm, and rounds that were watched, over all seeds."""
    alarms = watched = 0
    for seed in range(SEEDS):
        world = make_drawn_world(seed, validation=validation, phases=ROUNDS // EVERY)
        plan = Plan(rounds=ROUNDS, evaluate_every=ROUNDS, local=Local(epochs=1, batch_size=10, lr=0.1))
        played = play(build(f"{method}+watch(on={on})"), world=world, engine=BatchedEngine(world), plan=plan, seed=seed, rounds=ROUNDS)
        notes: list[Any] = [record.notes.named["watch"] for record in played.records if "watch" in record.notes.named]
        alarms += sum(bool(note["alarms"]) for note in notes)
        watched += len(notes) * EVERY
    return alarms, watched


def make_rate_rows() -> Iterator[list[str]]:
    """False alarms of the test itself."""
    for kind, samples in CASES:
        found = sum(run_looks(samples, error, kind, LOOKS)[0] for error in ERRORS)
        yield [kind, f"{samples}", f"{found}", f"{RUNS * LOOKS * EVERY * len(ERRORS):,}"]


def make_delay_rows() -> Iterator[list[str]]:
    """Looks until a change is noticed, of one client among forty; a dash: in fewer than nine of ten runs within 20 looks."""
    for samples, error in DELAYS:
        cells = []
        for rise in RISES:
            _, delays = run_looks(samples, error, "coin", 20, rise)
            cells.append(f"{np.median(delays):.0f}" if len(delays) >= 0.9 * RUNS else f"— ({len(delays)} of {RUNS})")
        yield [f"{samples}", f"{error:g}", *cells]


def make_method_rows() -> Iterator[list[str]]:
    """False alarms of the wrapper."""
    for method in METHODS:
        for on in ("accuracy", "loss"):
            for validation in (True, False):
                alarms, rounds = count_alarms(method, on, validation=validation)
                yield [method, on, "validation" if validation else "training", f"{alarms}", f"{rounds:,}"]


TABLES = {
    "rates": (["errors", "samples", "rounds with a false alarm", "rounds"], make_rate_rows),
    "delays": (["samples", "error before", *(f"rise {rise:g}" for rise in RISES)], make_delay_rows),
    "methods": (["method", "reports", "part", "rounds with a false alarm", "rounds watched"], make_method_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a page with the marks of the tables")
    args = parser.parse_args()
    for name, (header, make) in TABLES.items():
        table = "\n".join(format_markdown_table(header, make()))
        print(f"## {name}\n\n{table}\n")
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if args.write:
            head, _, rest = args.write.read_text(encoding="utf-8").partition(begin)
            args.write.write_text(f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
