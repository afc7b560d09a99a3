"""The methods a user can name, and the wrappers that go behind a plus sign: ``fedavg+finetune(epochs=5)``."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from coterie._util.errors import UserError, suggest_names
from coterie.core.method import Method
from coterie.core.specs import Registry, Spec, check_trust, import_object, is_external_code, parse, split_at
from coterie.methods.apfl import APFL
from coterie.methods.auto import Auto
from coterie.methods.cfl import CFL
from coterie.methods.cflgp import CFLGP
from coterie.methods.clove import CLoVE
from coterie.methods.continuum import Continuum
from coterie.methods.ditto import Ditto
from coterie.methods.fedala import FedALA
from coterie.methods.fedatt import FedAtt
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedclust import FedClust
from coterie.methods.feddane import FedDANE
from coterie.methods.feddrift import FedDrift
from coterie.methods.fedem import FedEM
from coterie.methods.fedex import FedEx
from coterie.methods.fedfew import FedFew
from coterie.methods.fedgroup import FedGroup, FedGroupRAC, FedGroupRCC, FedGrouProx
from coterie.methods.fedgwc import FedGWC
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrc import FedRC
from coterie.methods.fedsgd import FedSGD
from coterie.methods.fedsim import FedSim
from coterie.methods.feroma import FEROMA
from coterie.methods.fesem import FeSEM
from coterie.methods.fesem_ma import MatchedFeSEM
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.flhc import FLHC
from coterie.methods.flux import Flux
from coterie.methods.guard import Guard
from coterie.methods.ifca import IFCA, HypoCluster
from coterie.methods.knn import NearestNeighbours
from coterie.methods.local_only import LocalOnly
from coterie.methods.moon import MOON
from coterie.methods.neighbour_prox import NeighbourProx
from coterie.methods.own_norm import OwnNorm
from coterie.methods.pacfl import PACFL
from coterie.methods.pfedgraph import PFedGraph
from coterie.methods.private import PrivateLayers
from coterie.methods.reptile import FedDist, FedDWS
from coterie.methods.restarts import Restarts
from coterie.methods.robust import Robust
from coterie.methods.scaffold import SCAFFOLD
from coterie.methods.server_optimised import ServerOptimised
from coterie.methods.simagg import SimAgg
from coterie.methods.simprox import SimProx
from coterie.methods.structured import Structured
from coterie.methods.watch import Watch
from coterie.methods.wrapper import RateOverride

T = TypeVar("T")
_ONE_MODEL = (
    FedAvg,
    FedProx,
    FedSGD,
    SimProx,
    SimAgg,
    FedSim,
    FedAtt,
    FedDANE,
    FedDist,
    FedDWS,
    SCAFFOLD,
    NeighbourProx,
    MOON,
    Ditto,
)
_GROUPED = (FedGroup, FedGrouProx, FeSEM, FedEx, IFCA, HypoCluster, CFL, FLHC, Robust)
_AUTO = (Auto, Continuum, Structured)
_RIVALS = (APFL, CFLGP, CLoVE, FedALA, FedClust, FedDrift, FedEM, FedFew, FedGWC, FedRC, FEROMA, Flux, PACFL, PFedGraph)
methods: Registry[Method[Any]] = Registry(
    "method",
    "coterie.methods",
    **{kind.__name__.lower(): kind for kind in (*_ONE_MODEL, *_GROUPED, *_RIVALS, *_AUTO)},
    **{"local": LocalOnly, "rcc": FedGroupRCC, "rac": FedGroupRAC, "fesem_ma": MatchedFeSEM},
)
wrappers: Registry[Method[Any]] = Registry(
    "wrapper",
    auto=Auto,
    fedbn=OwnNorm,
    finetune=FineTuned,
    guard=Guard,
    knn=NearestNeighbours,
    private=PrivateLayers,
    rate=RateOverride,
    restarts=Restarts,
    server=ServerOptimised,
    watch=Watch,
)
PRESETS = {  # names that papers give a method with wrappers
    "fedper": "fedavg+private(layers=head)",
    "fedrep": "fedavg+private(layers=head,train=private_first)",
    "fedbabu": "fedavg+private(layers=head,train=shared)+finetune",
    "lgfedavg": "fedavg+private(layers=body)",
}

# what a word such as @rivals stands for wherever methods are named; groups are 4, and the other settings the methods' own
METHOD_SETS: dict[str, tuple[str, ...]] = {
    "@baselines": ("fedavg", "fedavg(weighting=uniform)", "local", "fedavg+finetune(epochs=5)", "fedprox(mu=0.1)", "scaffold", "ditto"),
    "@papers": ("fedsim(clusters=4)", "fedgroup(groups=4)", "fesem(groups=4)", "fedex(groups=4)", "simprox", "ifca(groups=4)", "cfl"),
    "@rivals": (
        *("clove(groups=4)", "fedem", "fedrc", "flux", "feroma", "fedfew", "cflgp(groups=4)", "pfedgraph", "fedgwc"),
        *("fedavg+private(layers=head)", "fedavg+knn", "apfl", "fedala", "pacfl", "fedclust"),
    ),
}


def expand_sets(words: Sequence[T | str]) -> tuple[list[T | str], frozenset[str]]:
    """The words with the methods of each set in its place, each once; and those that only a set names.

    >>> expand_sets(["ifca(groups=4)", "@papers"])[0][:3]
    ['ifca(groups=4)', 'fedsim(clusters=4)', 'fedgroup(groups=4)']
    """
    typed = {word for word in words if isinstance(word, str)}
    named: list[T | str] = []
    for word in words:
        if not (isinstance(word, str) and word.startswith("@")):
            named.append(word)
            continue
        if word not in METHOD_SETS:
            raise UserError(f"Unknown set of methods {word!r}: {suggest_names(word, METHOD_SETS)}")
        named += [spec for spec in METHOD_SETS[word] if spec not in typed and spec not in named]
    return named, frozenset(word for word in named if isinstance(word, str)) - typed


def build(text: str, *, trust: bool = False) -> Method[Any]:
    """The method that a spec names, with its wrappers applied from left to right.

    ``package.module:Method`` is code of a user's own. It is imported only with `trust`: labels of methods stand in evidence, too, and
    its author could have anything imported.
    """
    first, *rest = split_at(text, "+")
    if not is_external_code(first) and (name := parse(first).name) in PRESETS:
        if first != name:
            raise UserError(f"{name!r} is short for {PRESETS[name]!r}, and has no settings of its own: write the long form.")
        first, *rest = (*split_at(PRESETS[name], "+"), *rest)
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
    if isinstance(method, Auto) and inner == FedAvg():  # its default
        inner = None
    known = wrappers if isinstance(inner, Method) else methods
    name = next((name for name in known if known[name] is type(method)), type(method).__name__.lower())
    names = sorted((f for f in fields(method) if f.name != "method"), key=lambda f: f.name == "assign")  # a control is named last
    changed = {f.name: getattr(method, f.name) for f in names if getattr(method, f.name) != f.default}
    own = str(Spec(name, (), changed))
    return f"{get_spec(inner)}+{own}" if isinstance(inner, Method) else own
