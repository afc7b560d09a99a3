"""Orders and hellos for tests: what a server introduces itself with, and a policy that approves it."""

from dataclasses import asdict
from typing import Any

from coterie._util.json_io import to_json_value
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.messages import PROTOCOL, Hello
from coterie.deploy.orders import ASKS, OrderTerms
from coterie.deploy.site.policy import DEFAULT_POLICY

APPROVE_ANY = "[approve]\nany = true\n"  # for a policy of one's own, before its other tables
APPROVING_POLICY = DEFAULT_POLICY.replace("any = false", "any = true")


def make_terms(run: str = "r", model: str = "mclr", *, rounds: int = 1000, epochs: int = 1, **changes: Any) -> OrderTerms:
    """An order of FedAvg that names every ask, with some terms changed."""
    plan = to_json_value(asdict(Plan(rounds=rounds, local=Local(epochs=epochs))))
    reported: dict[str, Any] = {"kind": "study", "operator": "a test", "purpose": "", "data": "sites", "methods": ("fedavg",)}
    return OrderTerms(**{**reported, "run": run, "model": model, "seeds": (0,), "asks": ASKS, "plan": plan, **changes})


def make_hello(terms: OrderTerms | None = None, number: str = "1", **changes: Any) -> Hello:
    """The message that introduces a server with an order."""
    terms = terms or make_terms(**changes)
    return Hello(PROTOCOL, terms.run, number, terms.model, "source", terms.hash, terms.as_text())
