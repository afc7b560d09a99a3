"""The models of the papers, and the way to a user's own."""

from coterie.models.catalogue import ModelListed, build_model, describe_model, models
from coterie.models.cnn import Cnn
from coterie.models.lstm import Recurrent
from coterie.models.mlp import Mlp

__all__ = ["Cnn", "Mlp", "ModelListed", "Recurrent", "build_model", "describe_model", "models"]
