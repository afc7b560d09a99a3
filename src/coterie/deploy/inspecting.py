"""The four questions of `coterie inspect`, asked of real sites."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.method import Context
from coterie.core.model import ModelSpec
from coterie.core.plain import plain, write_json
from coterie.core.plan import Plan
from coterie.core.problem import Problem
from coterie.core.refusals import Refusal
from coterie.deploy.engine import Carrier, FederatedEngine
from coterie.deploy.members import Members
from coterie.engines.engine import Stamped
from coterie.inspect.answers import answers
from coterie.inspect.inspection import InspectPlan, inspection
from coterie.inspect.page import inspection_page
from coterie.inspect.pilot import PilotPlan
from coterie.inspect.recommendation import recommend
from coterie.models.catalogue import build_model
from coterie.run.drive import answer

ANSWERS = "answers.json"  # in words, for the terminal


@dataclass(frozen=True)
class InspectOrder:
    """What is to be asked, as it travels to the server."""

    data: str  # for the record
    model: str = "mclr"
    seed: int = 0
    plan: InspectPlan = field(default_factory=InspectPlan)

    def as_json(self) -> dict[str, Any]:
        return dict(plain(asdict(self)))

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "InspectOrder":
        """What `as_json` wrote."""
        plan, pilot = dict(tree["plan"]), tree["plan"]["pilot"]
        plan["pilot"] = (
            PilotPlan(**{**pilot, "local": Local(**pilot["local"]), "rates": tuple(pilot["rates"])}) if pilot is not None else None
        )
        return cls(**{**tree, "plan": InspectPlan(**plan)})


def write_inspection(order: InspectOrder, members: Members, carrier: Carrier, run: str, folder: Path, terms: str = "") -> None:
    """Ask, and write inspection.json, inspection.html and the answers in words into the run's folder. `terms` is the order's hash."""
    problem = problem_of(members, order.model)
    plan = replace(order.plan, validation=order.plan.validation and members.validation)
    ctx = Context(problem.roster_at(0), problem.layout, Plan(), order.seed, 0)
    script = inspection(problem.initial(order.seed), members.classes, (order.data, order.model), ctx, plan)
    engine = _Listening(carrier, members, run, terms)
    try:
        found = answer(script, engine, seed=order.seed)
    except UserError as error:
        raise UserError(engine.explained(str(error))) from error
    write_json(folder / "inspection.json", found.as_json())
    (folder / "inspection.html").write_text(inspection_page(found), encoding="utf-8")
    advised = recommend(found, str(folder.parent.parent))
    told = {
        "recommended": None if advised is None else asdict(advised),
        "clients": len(found.ids),
        "left_out": list(found.left_out),
        "answers": [asdict(one) for one in answers(found)],
    }
    (folder / ANSWERS).write_text(json.dumps(told | {"denied": engine.denials}), encoding="utf-8")


class _Listening(FederatedEngine):
    """Keeps what sites refuse, to be told why an inspection has too little to go by."""

    def __init__(self, carrier: Carrier, members: Members, run: str, order: str) -> None:
        super().__init__(carrier, members.sites, [member.id for member in members.members], run, members=members, order=order)
        self.denials: list[str] = []

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        replies = super().run(asks)
        told = {refused.detail for reply in replies for refused in reply.refused.values() if refused.why is Refusal.DENIED}
        self.denials += sorted(told - set(self.denials))
        return replies

    def explained(self, fault: str) -> str:
        """What went wrong, with the policies' part in it."""
        if any("label_shares" in detail for detail in self.denials):
            return (
                "The sites do not tell how many samples of each class they have ('label_shares' is false in their policy.toml): "
                "inspect with --no-labels, or ask them to allow it."
            )
        return f"{fault} {self.denials[0]}" if self.denials else fault


def problem_of(members: Members, model: str) -> Problem:
    """What the server knows of what is learned."""
    roster = replace(members.roster(), sites=tuple(member.site for member in members.members))
    spec = ModelSpec(model, members.input_shape, len(members.classes), build_model)
    return Problem(spec, lambda round_: roster, validation=members.validation)
