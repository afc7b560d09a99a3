"""Coterie: federated learning for clients that resemble each other."""

from coterie.asks import Error, Evaluate, Gradient, Local, Losses, Train
from coterie.callbacks import Callback
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts
from coterie.errors import UserError
from coterie.evidence import Evidence, digest
from coterie.method import Context, Method, Plan, Round, done
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsgd import FedSGD
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.methods.server_optimised import ServerOptimised
from coterie.mixing import Mixing, mix
from coterie.progress import ProgressBar
from coterie.result import Result
from coterie.serving import Mixture, Panel, Serving
from coterie.settings import Execution
from coterie.states import Models, State
from coterie.study import Study, study

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Context",
    "Error",
    "Evaluate",
    "Evidence",
    "Execution",
    "FedAvg",
    "FedProx",
    "FedSGD",
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
    "ServerOptimised",
    "Serving",
    "State",
    "Study",
    "Train",
    "UserError",
    "digest",
    "done",
    "load",
    "mix",
    "study",
]
