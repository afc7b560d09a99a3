"""The methods of a study as a user names them: single ones, and sets such as `@rivals`; with both stages of each where that is asked for.

A method that is named and cannot run is an error, before anything is trained. One that a set brings is left out, with the same sentence.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError
from coterie.analysis.roles import check_groups
from coterie.core.method import Method, Problem
from coterie.core.model import MakeModule
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.engines.world import World
from coterie.methods.catalogue import build, expand_sets, get_spec
from coterie.methods.fine_tuned import MIXTURE, FineTuned
from coterie.models.catalogue import build_model
from coterie.run.async_rounds import check_async_methods
from coterie.run.tuning import LabelledMethod


@dataclass(frozen=True)
class ChosenMethods:
    """Methods by label; those that a set brought are optional."""

    entries: tuple[LabelledMethod, ...]
    optional: frozenset[str] = frozenset()
    notices: tuple[str, ...] = ()  # why methods of a set were left out, a sentence each

    @classmethod
    def resolve(cls, methods: Sequence[Method[Any] | str] | Method[Any] | str, optional: Iterable[str] = ()) -> "ChosenMethods":
        """Build what is named. `optional` are labels that a set brought before."""
        words = [methods] if isinstance(methods, (str, Method)) else list(methods)
        named, brought = expand_sets(words)
        brought |= frozenset(optional)
        found: list[LabelledMethod] = []
        notices = []
        for word in named:
            try:
                found.append((word, build(word, trust=True)) if isinstance(word, str) else (get_spec(word), word))
            except UserError as error:
                if word not in brought:
                    raise
                notices.append(_describe_omission(str(word), error))
        return cls(tuple(found), brought, tuple(notices))._check_some(words)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label, _ in self.entries)

    @property
    def methods(self) -> list[Method[Any]]:
        return [method for _, method in self.entries]

    def fit(self, problems: Iterable[Problem], plan: Plan) -> "ChosenMethods":
        """Without the optional methods that one of these problems does not admit."""
        known = list(problems)
        kept, notices = [], list(self.notices)
        for label, method in self.entries:
            try:
                if label in self.optional:
                    for problem in known:
                        check_method(label, method, problem, plan)
                kept.append((label, method))
            except UserError as error:
                notices.append(_describe_omission(label, error))
        return replace(self, entries=tuple(kept), notices=tuple(notices))._check_some(self.labels)

    def add_stages(self, epochs: int) -> "ChosenMethods":
        """Each method also after local epochs: a method is then judged as it is served, and after clients have trained further.

        Clients that train alone, and methods that fine-tune already, have the one stage.
        """
        found, notices = list(self.entries), list(self.notices)
        known = {method for _, method in self.entries}
        for label, method in self.entries:
            if method.is_local or isinstance(method, FineTuned):
                continue
            if method.combines_models:
                notices.append(f"{label} is judged as it is served only. {MIXTURE}")
            elif (tuned := FineTuned(method=method, epochs=epochs)) not in known:
                found.append((f"{label}+finetune(epochs={epochs})", tuned))
        return replace(self, entries=tuple(found), notices=tuple(notices))

    def _check_some(self, words: Sequence[object]) -> "ChosenMethods":
        if not self.entries:
            raise UserError(f"No method of {', '.join(map(str, words))} can run here: {' '.join(self.notices)}")
        return self


def _describe_omission(label: str, error: UserError) -> str:
    return f"{label} is left out: {error}"


def check_method(label: str, method: Method[Any], problem: Problem, plan: Plan) -> None:
    """Refuse a method that cannot run on a problem, before any client is asked.

    Its start, and where that asks nothing its first round, run up to their first question, so that it refuses what it refuses by itself.
    """
    check_groups([label], [method], len(problem.roster_at(plan.rounds)), plan.cohort)
    check_async_methods(plan, [label], [method])
    if method.sees_truth:
        return
    with closing(method.start(problem.initial(0), problem.context(plan, 0, 0))) as start:
        try:
            next(start)
            return
        except StopIteration as end:
            state = end.value
    with closing(method.round(state, problem.context(plan, 0, 1))) as first:
        next(first, None)


def fit_to_data(
    chosen: ChosenMethods,
    data: str | Federation,
    draw: int,
    plan: Plan,
    model: str,
    *,
    data_dir: Path | None = None,
    make: MakeModule = build_model,
) -> ChosenMethods:
    """The methods that can run on one draw of these data with this model. Where none is optional, nothing is loaded."""
    if not chosen.optional & set(chosen.labels):
        return chosen
    federation = data if isinstance(data, Federation) else load(data, draw, data_dir)
    return chosen.fit([World.from_spec(federation, model, make=make).problem], plan)
