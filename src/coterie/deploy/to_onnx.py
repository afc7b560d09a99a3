"""A bundle's only model as an ONNX file, for runtimes without Python or torch."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.tasks import Task
from coterie.deploy.bundle import Bundle
from coterie.engines.loss import scores

ONNX = "model.onnx"
PACKAGES = ("onnx", "onnxscript")


class _Answering(nn.Module):
    """The model with its outputs as probabilities, or as numbers in the target's own units: which is what a site wants to know."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, x: Tensor) -> Tensor:
        said = scores(self.model(x), self.task)
        return said * self.task.deviation + self.task.mean if self.task.name == "regression" else said


def check_onnx(bundle: Bundle | None = None) -> None:
    """Refuse before anything is written: where a package is missing, or a bundle has several models."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"--onnx needs the package {missing[0]}: install it with pip install 'coterie[onnx]'.")
    if bundle is not None and bundle.task.name == "next-token":
        raise UserError("--onnx writes models of classes, labels and numbers, not language models: leave --onnx away.")
    if bundle is not None and len(bundle.models) != 1:
        raise UserError(f"--onnx writes one model and {next(iter(bundle.clients))}'s bundle has {len(bundle.models)}: leave --onnx away.")


def _check_one_input(bundle: Bundle) -> None:
    if bundle.several is not None:
        raise UserError(f"--onnx writes models of one input, and this takes {len(bundle.several.shapes)}: leave --onnx away.")


def write_onnx(bundle: Bundle, path: Path) -> None:
    """Samples `x`, any number of them, to `probabilities`, or to `predictions` of a regression."""
    check_onnx()
    _check_one_input(bundle)
    if len(bundle.models) != 1:
        raise UserError(f"--onnx writes one model and this bundle has {len(bundle.models)}: leave --onnx away.")
    kind = torch.int64 if bundle.tokens else torch.float32
    example = torch.zeros(2, *bundle.input_shape, dtype=kind)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own making
            torch.onnx.export(
                _Answering(bundle.load(0), bundle.task).eval(),
                (example,),
                str(path),
                input_names=["x"],
                output_names=["predictions" if bundle.task.name == "regression" else "probabilities"],
                dynamic_shapes={"x": {0: torch.export.Dim("samples")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # torch raises many kinds for modules that it cannot write
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"The model {bundle.model!r} cannot be written as ONNX ({reason}): leave --onnx away.") from error
    finally:
        quiet.setLevel(level)
