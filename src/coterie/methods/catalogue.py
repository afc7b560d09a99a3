"""The methods a user can name, and the wrappers that go behind a plus sign: ``fedavg+finetune(epochs=5)``."""

from dataclasses import fields
from typing import Any

from coterie._util.errors import UserError
from coterie.core.method import Method
from coterie.core.specs import Registry, Spec, check_trust, import_object, is_external_code, parse, split_at
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.fedatt import FedAtt
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddane import FedDANE
from coterie.methods.fedex import FedEx
from coterie.methods.fedgroup import FedGroup, FedGroupRAC, FedGroupRCC, FedGrouProx
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsgd import FedSGD
from coterie.methods.fedsim import FedSim
from coterie.methods.fesem import FeSEM
from coterie.methods.fesem_ma import MatchedFeSEM
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.flhc import FLHC
from coterie.methods.guard import Guard
from coterie.methods.ifca import IFCA, HypoCluster
from coterie.methods.local_only import LocalOnly
from coterie.methods.moon import MOON
from coterie.methods.neighbour_prox import NeighbourProx
from coterie.methods.own_norm import OwnNorm
from coterie.methods.reptile import FedDist, FedDWS
from coterie.methods.restarts import Restarts
from coterie.methods.robust import Robust
from coterie.methods.scaffold import SCAFFOLD
from coterie.methods.server_optimised import ServerOptimised
from coterie.methods.simagg import SimAgg
from coterie.methods.simprox import SimProx
from coterie.methods.wrapper import RateOverride

_ONE_MODEL = (FedAvg, FedProx, FedSGD, SimProx, SimAgg, FedSim, FedAtt, FedDANE, FedDist, FedDWS, SCAFFOLD, NeighbourProx, MOON, Ditto)
_GROUPED = (FedGroup, FedGrouProx, FeSEM, FedEx, IFCA, HypoCluster, CFL, FLHC, Robust)
methods: Registry[Method[Any]] = Registry(
    "method",
    "coterie.methods",
    **{kind.__name__.lower(): kind for kind in (*_ONE_MODEL, *_GROUPED)},
    **{"local": LocalOnly, "rcc": FedGroupRCC, "rac": FedGroupRAC, "fesem_ma": MatchedFeSEM},
)
wrappers: Registry[Method[Any]] = Registry(
    "wrapper", fedbn=OwnNorm, finetune=FineTuned, guard=Guard, rate=RateOverride, restarts=Restarts, server=ServerOptimised
)


def build(text: str, *, trust: bool = False) -> Method[Any]:
    """The method that a spec names, with its wrappers applied from left to right.

    ``package.module:Method`` is code of a user's own. It is imported only with `trust`: labels of methods stand in evidence, too, and
    its author could have anything imported.
    """
    first, *rest = split_at(text, "+")
    method = _build_user_method(parse(first), trust) if is_external_code(first) else methods.build(first)
    for wrapper in rest:
        method = wrappers.build(wrapper, method=method)
    return method


def _build_user_method(spec: Spec, trust: bool) -> Method[Any]:
    """A method of the user's own: nothing but a subclass of `Method` is called."""
    check_trust([str(spec)], "This", trust, "method")
    found = import_object("Method", spec.name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"Method {spec.name!r} is of type {type(found).__name__}: name a subclass of coterie.Method.")
    one: Registry[Method[Any]] = Registry("method")
    one.add(spec.name, found)
    return one.build(spec)


def get_spec(method: Method[Any]) -> str:
    """The spec that names a method object: its name and the settings that are not the defaults."""
    inner = getattr(method, "method", None)
    known = wrappers if isinstance(inner, Method) else methods
    name = next((name for name in known if known[name] is type(method)), type(method).__name__.lower())
    names = sorted((f for f in fields(method) if f.name != "method"), key=lambda f: f.name == "assign")  # a control is named last
    changed = {f.name: getattr(method, f.name) for f in names if getattr(method, f.name) != f.default}
    own = str(Spec(name, (), changed))
    return f"{get_spec(inner)}+{own}" if isinstance(inner, Method) else own
