"""Resume a study or a comparison from its folder alone, optionally with more seeds, rounds or draws.

Objects given in Python (a federation, a module's weights, a loss) are not stored in a folder: such a study is resumed in Python. Other
data or another loss are refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError
from coterie._util.files import FolderLock
from coterie._util.json_io import read_json, read_json_object
from coterie.analysis.comparison import Comparison
from coterie.core.plan import Plan
from coterie.core.specs import check_trust
from coterie.evidence.manifest import REQUEST, is_study
from coterie.evidence.settings import Settings
from coterie.evidence.writer import finish_growing
from coterie.methods.catalogue import build
from coterie.run.callbacks import Callback
from coterie.run.compare import make_draws, run_request
from coterie.run.comparison_request import ComparisonRequest, Design, DrawLoader, make_design
from coterie.run.execution import Execution
from coterie.run.result import Result
from coterie.run.study import Study


@dataclass(frozen=True)
class Extension:
    """The final seeds, rounds and draws, where these are more than before."""

    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    draws: int | None = None  # of a comparison

    def plan(self, plan: Plan) -> Plan:
        return plan if self.rounds is None else replace(plan, rounds=self.rounds)

    def design(self, spec: str, source: DrawLoader, design: Design) -> Design:
        wanted = len(design.draws) if self.draws is None else self.draws
        return make_design(spec, source, first=design.draws[0], draws=wanted, seeds=self.seeds or design.seeds)


UNCHANGED = Extension()


def resume_study(
    folder: Path,
    *,
    more: Extension = UNCHANGED,
    data_dir: Path | None = None,
    trust: bool = False,
    callbacks: Iterable[Callback] = (),
    **execution: Any,
) -> Result:
    """Resume a study and run it to its end. Code that its folder names needs `trust`; `execution` is as `Execution.override` reads it."""
    if more.draws is not None:
        raise UserError(f"Draws are for comparisons, and {folder} is a study: omit them.")
    with FolderLock(folder):
        finish_growing(folder)
    stored = Settings.from_json(read_json(folder / "settings.json"))
    settings = replace(stored, seeds=more.seeds or stored.seeds, plan=more.plan(stored.plan))
    _check_code(settings, folder, trust)
    if (folder / "data.json").is_file() and not read_json_object(folder / "data.json"):
        raise UserError(f"{folder} is of a real federation, whose data are with its sites: resume it with 'coterie launch --resume'.")
    try:
        study = Study.prepare(settings, data_dir=data_dir, methods=[build(spec, trust=trust) for spec in settings.methods])
    except UserError as error:
        raise _make_resume_error(folder, error) from error
    now = _override_execution(Execution.read(folder / "execution.json"), **execution)
    return study.run(out=folder, resume=True, execution=now, callbacks=callbacks)


def resume_comparison(
    folder: Path,
    *,
    more: Extension = UNCHANGED,
    budget: float | None = None,
    data_dir: Path | None = None,
    trust: bool = False,
    callbacks: Iterable[Callback] = (),
    **execution: Any,
) -> Comparison:
    """Resume a comparison and run it to its end, or for so many minutes; new studies run with the settings of the first."""
    request = ComparisonRequest.from_json(read_json_object(folder / REQUEST), folder / REQUEST)
    _check_code(request, folder, trust)
    check_trust([] if request.metric is None else [request.metric], str(folder), trust, "metric")
    started = [path for name in request.folders for path in (folder / name, folder / "tuning" / name) if is_study(path)]
    stored = Execution.read(started[0] / "execution.json") if started else Execution()
    try:
        entries = [(spec, build(spec, trust=trust)) for spec in request.methods]
        sources = [make_draws(spec, data_dir) for spec in request.data]
        for source, design in zip(sources, request.designs, strict=True):
            source(design.draws[0])  # loads it
    except UserError as error:
        raise _make_resume_error(folder, error) from error
    designs = tuple(more.design(*one) for one in zip(request.data, sources, request.designs, strict=True))
    request = replace(request, designs=designs, plan=more.plan(request.plan))
    now = replace(_override_execution(stored, **execution), seeds_per_wave=None)
    return run_request(request, entries, sources, folder, True, budget, now, tuple(callbacks))


def _check_code(stored: Settings | ComparisonRequest, folder: Path, trust: bool) -> None:
    check_trust([stored.model], str(folder), trust)
    check_trust(stored.methods, str(folder), trust, "method")
    check_trust([stored.plan.selection], str(folder), trust, "sampler")


def _override_execution(stored: Execution, *, ray: str | None = None, **given: Any) -> Execution:
    return stored.override(Execution(ray=ray, gpus_per_wave=stored.gpus_per_wave if ray is not None else 0, **given))


def _make_resume_error(folder: Path, error: UserError) -> UserError:
    return UserError(f"{folder} does not have all that is needed to resume; the command that made it has. {error}")
