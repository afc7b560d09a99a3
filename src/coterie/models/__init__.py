"""The models of the papers, and the way to a user's own."""

from coterie.models.catalogue import ModelEntry, build_model, list_models, models
from coterie.models.cnn import Cnn
from coterie.models.lstm import Recurrent
from coterie.models.mlp import Mlp

__all__ = ["Cnn", "Mlp", "ModelEntry", "Recurrent", "build_model", "list_models", "models"]
