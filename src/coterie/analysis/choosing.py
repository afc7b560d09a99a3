"""The metric that a user names: one of ours, one that an installed package adds, or a function of one's own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from coterie.analysis.measures import METRICS, OWN, Counts, Measure, Metric
from coterie.core.arrays import Doubles
from coterie.core.errors import UserError, suggestion
from coterie.core.named_code import named_object
from coterie.core.specs import Registry
from coterie.core.tasks import Task, TaskName

ValueOf = Callable[[Counts], Doubles]
installed: Registry[Doubles] = Registry("metric", "coterie.metrics")  # functions of counts, as entry points


def metric_of(name: str | ValueOf | None, task: TaskName, classes: int) -> Metric:
    """The metric for a task: its own, or the one chosen, refused where it is none of this task."""
    if name is None:
        return METRICS[OWN[task]]
    if not isinstance(name, str):
        return _own(getattr(name, "__name__", "own metric"), name)
    if ":" in name:
        return _own(name.rpartition(":")[2], named_object("Metric", name))
    if name not in METRICS and name in installed:
        return _own(name, installed[name])
    fitting = [each for each, metric in METRICS.items() if task in metric.tasks]
    if name not in METRICS:
        raise UserError(f"There is no metric {name!r}: {suggestion(name, [*fitting, *installed])}")
    found = METRICS[name]
    if task not in found.tasks or (found.two_classes and classes != 2):
        why = f"is of two classes, and there are {classes}" if task in found.tasks else f"is not for a {Task(task)}"
        raise UserError(f"The metric {name!r} {why}: choose from {', '.join(each for each in fitting if each != name)}.")
    return found


def is_code(name: str | None) -> bool:
    """Whether a name stands for code that would be imported."""
    return name is not None and ":" in name


def _own(name: str, function: ValueOf) -> Metric:
    if not callable(function):
        raise UserError(f"The metric {name!r} is no function: let it take counts and give a value for each of their rows.")

    def checked(counts: Counts) -> Doubles:
        found = np.asarray(function(counts), dtype=np.float64)
        if found.shape != np.shape(counts.samples):
            raise UserError(f"The metric {name!r} gives values of shape {found.shape} for {len(counts.samples)} rows: give one a row.")
        return found

    words = name.replace("_", " ")
    measure = Measure(name, words, f"one hundredth of {words}", share=False, alike=True)
    return replace(METRICS["accuracy"], measure=measure, of=checked)
