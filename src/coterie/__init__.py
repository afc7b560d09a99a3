"""Coterie: federated learning for clients that resemble each other.

The public names are loaded when they are first used: `import coterie` and `coterie --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test holds it equal to what is loaded
    from coterie.analysis.comparison import Comparison as Comparison
    from coterie.analysis.measures import Counts as Counts
    from coterie.core.asks import Error as Error
    from coterie.core.asks import Evaluate as Evaluate
    from coterie.core.asks import Gradient as Gradient
    from coterie.core.asks import Losses as Losses
    from coterie.core.asks import Train as Train
    from coterie.core.errors import UserError as UserError
    from coterie.core.local import Local as Local
    from coterie.core.method import Context as Context
    from coterie.core.method import Method as Method
    from coterie.core.method import Round as Round
    from coterie.core.method import done as done
    from coterie.core.mixing import Mixing as Mixing
    from coterie.core.mixing import mix as mix
    from coterie.core.plan import Plan as Plan
    from coterie.core.rules import LocalRule as LocalRule
    from coterie.core.rules import Step as Step
    from coterie.core.samplers import samplers as samplers
    from coterie.core.serving import Mixture as Mixture
    from coterie.core.serving import NamedModels as NamedModels
    from coterie.core.serving import Serving as Serving
    from coterie.core.states import Models as Models
    from coterie.core.states import State as State
    from coterie.data.catalogue import load as load
    from coterie.data.checks import Finding as Finding
    from coterie.data.checks import check_data as check_data
    from coterie.data.federation import Federation as Federation
    from coterie.data.federation import Parts as Parts
    from coterie.data.federation import Samples as Samples
    from coterie.data.own import from_torch as from_torch
    from coterie.deploy.bundle import Bundle as Bundle
    from coterie.deploy.bundle_files import read_bundle as read_bundle
    from coterie.evidence import Evidence as Evidence
    from coterie.evidence import digest as digest
    from coterie.inspect.inspection import inspect_data as inspect_data
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.fedatt import FedAtt as FedAtt
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.feddane import FedDANE as FedDANE
    from coterie.methods.fedex import FedEx as FedEx
    from coterie.methods.fedgroup import FedGroup as FedGroup
    from coterie.methods.fedgroup import FedGrouProx as FedGrouProx
    from coterie.methods.fedgroup import RandomCentres as RandomCentres
    from coterie.methods.fedgroup import RandomNewcomers as RandomNewcomers
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedsgd import FedSGD as FedSGD
    from coterie.methods.fedsim import FedSim as FedSim
    from coterie.methods.fesem import FeSEM as FeSEM
    from coterie.methods.fesem_ma import MatchedFeSEM as MatchedFeSEM
    from coterie.methods.fine_tuned import FineTuned as FineTuned
    from coterie.methods.flhc import FLHC as FLHC
    from coterie.methods.grouped import GroupedMethod as GroupedMethod
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.ifca import HypoCluster as HypoCluster
    from coterie.methods.local_only import LocalOnly as LocalOnly
    from coterie.methods.moon import Moon as Moon
    from coterie.methods.neighbour_prox import NeighbourProx as NeighbourProx
    from coterie.methods.one_model import OneModelMethod as OneModelMethod
    from coterie.methods.reptile import FedDist as FedDist
    from coterie.methods.reptile import FedDWS as FedDWS
    from coterie.methods.robust import Robust as Robust
    from coterie.methods.scaffold import Scaffold as Scaffold
    from coterie.methods.server_optimised import ServerOptimised as ServerOptimised
    from coterie.methods.simagg import SimAgg as SimAgg
    from coterie.methods.simprox import SimProx as SimProx
    from coterie.run.callbacks import Callback as Callback
    from coterie.run.compare import compare as compare
    from coterie.run.execution import Execution as Execution
    from coterie.run.finishing import NothingFinishedError as NothingFinishedError
    from coterie.run.progress import ProgressBar as ProgressBar
    from coterie.run.result import Result as Result
    from coterie.run.study import Study as Study
    from coterie.run.study import study as study

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "coterie.analysis.comparison": ("Comparison",),
    "coterie.analysis.measures": ("Counts",),
    "coterie.core.asks": (
        "Error",
        "Evaluate",
        "Gradient",
        "Losses",
        "Train",
    ),
    "coterie.core.errors": ("UserError",),
    "coterie.core.local": ("Local",),
    "coterie.core.method": (
        "Context",
        "Method",
        "Round",
        "done",
    ),
    "coterie.core.mixing": (
        "Mixing",
        "mix",
    ),
    "coterie.core.plan": ("Plan",),
    "coterie.core.rules": (
        "LocalRule",
        "Step",
    ),
    "coterie.core.samplers": ("samplers",),
    "coterie.core.serving": (
        "Mixture",
        "NamedModels",
        "Serving",
    ),
    "coterie.core.states": (
        "Models",
        "State",
    ),
    "coterie.data.catalogue": ("load",),
    "coterie.data.checks": (
        "Finding",
        "check_data",
    ),
    "coterie.data.federation": (
        "Federation",
        "Parts",
        "Samples",
    ),
    "coterie.data.own": ("from_torch",),
    "coterie.deploy.bundle": ("Bundle",),
    "coterie.deploy.bundle_files": ("read_bundle",),
    "coterie.evidence": (
        "Evidence",
        "digest",
    ),
    "coterie.inspect.inspection": ("inspect_data",),
    "coterie.methods.cfl": ("CFL",),
    "coterie.methods.ditto": ("Ditto",),
    "coterie.methods.fedatt": ("FedAtt",),
    "coterie.methods.fedavg": ("FedAvg",),
    "coterie.methods.feddane": ("FedDANE",),
    "coterie.methods.fedex": ("FedEx",),
    "coterie.methods.fedgroup": (
        "FedGrouProx",
        "FedGroup",
        "RandomCentres",
        "RandomNewcomers",
    ),
    "coterie.methods.fedprox": ("FedProx",),
    "coterie.methods.fedsgd": ("FedSGD",),
    "coterie.methods.fedsim": ("FedSim",),
    "coterie.methods.fesem": ("FeSEM",),
    "coterie.methods.fesem_ma": ("MatchedFeSEM",),
    "coterie.methods.fine_tuned": ("FineTuned",),
    "coterie.methods.flhc": ("FLHC",),
    "coterie.methods.grouped": ("GroupedMethod",),
    "coterie.methods.ifca": (
        "HypoCluster",
        "IFCA",
    ),
    "coterie.methods.local_only": ("LocalOnly",),
    "coterie.methods.moon": ("Moon",),
    "coterie.methods.neighbour_prox": ("NeighbourProx",),
    "coterie.methods.one_model": ("OneModelMethod",),
    "coterie.methods.reptile": (
        "FedDWS",
        "FedDist",
    ),
    "coterie.methods.robust": ("Robust",),
    "coterie.methods.scaffold": ("Scaffold",),
    "coterie.methods.server_optimised": ("ServerOptimised",),
    "coterie.methods.simagg": ("SimAgg",),
    "coterie.methods.simprox": ("SimProx",),
    "coterie.run.callbacks": ("Callback",),
    "coterie.run.compare": ("compare",),
    "coterie.run.execution": ("Execution",),
    "coterie.run.finishing": ("NothingFinishedError",),
    "coterie.run.progress": ("ProgressBar",),
    "coterie.run.result": ("Result",),
    "coterie.run.study": (
        "Study",
        "study",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
