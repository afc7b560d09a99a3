"""A bundle's only adapter in the form in which `peft` keeps adapters, to be loaded onto the same language model by others."""

import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.specs import parse
from coterie.deploy.bundle import Bundle
from coterie.models.causal import NextTokens
from coterie.models.stacking import LoraLinear

ADAPTER = "adapter"  # the folder beside bundle.json
INNER = "inner."  # where `NextTokens` has the language model


def check_adapter(bundle: Bundle) -> None:
    """Refuse before anything is written: what has no adapters, or several models."""
    if not isinstance(bundle.module, NextTokens) or not _adapters(bundle):
        raise UserError(f"--peft writes the adapters of a language model, and {bundle.model!r} has none: leave --peft away.")
    if len(bundle.models) != 1:
        raise UserError(f"--peft writes one adapter and {next(iter(bundle.clients))}'s bundle has {len(bundle.models)}: leave --peft away.")


def write_adapter(bundle: Bundle, folder: Path) -> None:
    """`adapter_model.safetensors` and `adapter_config.json`."""
    check_adapter(bundle)
    bundle.load(0)
    adapters = _adapters(bundle)
    tensors: dict[str, Tensor] = {}
    for path, part in adapters.items():
        begin = f"base_model.model.{path}"
        tensors |= {f"{begin}.lora_A.weight": part.down.detach().clone(), f"{begin}.lora_B.weight": part.up.detach().clone()}
    first, spec = next(iter(adapters.values())), parse(bundle.model)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(spec.kwargs.get("folder", spec.args[0] if spec.args else "")),
        "r": len(first.down),
        "lora_alpha": first.scale * len(first.down),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({path.rpartition(".")[2] for path in adapters}),
        "inference_mode": True,
    }
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _adapters(bundle: Bundle) -> dict[str, LoraLinear]:
    """By the names that the language model has for its layers."""
    return {path.removeprefix(INNER): part for path, part in bundle.module.named_modules() if isinstance(part, LoraLinear)}
