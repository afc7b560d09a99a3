"""Coterie: federated learning for clients that resemble each other."""

from coterie.asks import Error, Evaluate, Gradient, Local, Losses, Train
from coterie.callbacks import Callback
from coterie.compare import compare
from coterie.comparison import Comparison
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts, Samples
from coterie.data.own import from_torch
from coterie.errors import UserError
from coterie.evidence import Evidence, digest
from coterie.method import Context, Method, Plan, Round, done
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
from coterie.mixing import Mixing, mix
from coterie.progress import ProgressBar
from coterie.result import Result
from coterie.serving import Mixture, Panel, Serving
from coterie.settings import Execution
from coterie.states import Models, State
from coterie.study import Study, study

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
