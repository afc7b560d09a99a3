"""`reproduce`: from a study file to its verdict."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.reproduce.claims import assess
from coterie.reproduce.curve_files import add_paper_curves
from coterie.reproduce.file import Reproduction
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.run import run_parts
from coterie.reproduce.values import values_of
from coterie.run.callbacks import Callback


def reproduce(
    study: Reproduction,
    *,
    out: Path,
    seeds: str | None = None,
    rounds: int | None = None,
    data_dir: Path | None = None,
    anyway: bool = False,
    trust: bool = False,
    only: Sequence[str] = (),
    callbacks: Iterable[Callback] = (),
    workers: int | None = None,
    ray: str | None = None,
    memory: float | None = None,
) -> Reproduced:
    """Run what is not yet in `out`, here or on `workers` (see `study`), and judge."""
    ways: dict[str, Any] = {"seeds": seeds, "rounds": rounds, "data_dir": data_dir, "anyway": anyway, "trust": trust, "only": only}
    runs = run_parts(study, out=out, callbacks=callbacks, workers=workers, ray=ray, memory=memory, **ways)
    values = {done.part.name: values_of(done, study.target, study.claims_of(done.part)) for done in runs}
    add_paper_curves(study, values, data_dir)
    return Reproduced(study, runs, values, assess(study, runs, values))
