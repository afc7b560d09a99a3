"""Coterie: federated learning for clients that resemble each other."""

from coterie.analysis import Comparison
from coterie.core.asks import Error, Evaluate, Gradient, Local, Losses, Train
from coterie.core.errors import UserError
from coterie.core.method import Context, Method, Plan, Round, done
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Mixture, Panel, Serving
from coterie.core.states import Models, State
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts, Samples
from coterie.data.own import from_torch
from coterie.evidence import Evidence, digest
from coterie.evidence.settings import Execution
from coterie.methods.cfl import CFL
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedex import FedEx
from coterie.methods.fedgroup import FedGroup, FedGrouProx
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsgd import FedSGD
from coterie.methods.fedsim import FedSim
from coterie.methods.fesem import FeSEM
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.flhc import FLHC
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from coterie.methods.scaffold import Scaffold
from coterie.methods.server_optimised import ServerOptimised
from coterie.methods.simprox import SimProx
from coterie.run.callbacks import Callback
from coterie.run.compare import compare
from coterie.run.progress import ProgressBar
from coterie.run.result import Result
from coterie.run.study import Study, study

__version__ = "0.1.0"

__all__ = [
    "CFL",
    "FLHC",
    "IFCA",
    "Callback",
    "Comparison",
    "Context",
    "Error",
    "Evaluate",
    "Evidence",
    "Execution",
    "FeSEM",
    "FedAvg",
    "FedEx",
    "FedGrouProx",
    "FedGroup",
    "FedProx",
    "FedSGD",
    "FedSim",
    "Federation",
    "FineTuned",
    "Gradient",
    "Local",
    "LocalOnly",
    "Losses",
    "Method",
    "Mixing",
    "Mixture",
    "Models",
    "Panel",
    "Parts",
    "Plan",
    "ProgressBar",
    "Result",
    "Round",
    "Samples",
    "Scaffold",
    "ServerOptimised",
    "Serving",
    "SimProx",
    "State",
    "Study",
    "Train",
    "UserError",
    "compare",
    "digest",
    "done",
    "from_torch",
    "load",
    "mix",
    "study",
]
