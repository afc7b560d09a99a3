"""Execution settings, and settings by keyword: `lr`, `rounds`, `threads` as given in Python, on the command line and in a study file.

The keywords are read from `Plan`, `Local` and `Execution`; none is listed twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from coterie._util.errors import UserError, suggest_names
from coterie._util.json_io import read_json_object
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import check_settings, get_setting_types, setting


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Engine, device, threads, memory. None of this changes what a study finds, except the route and the precision of a GPU's products.

    Both are stored, and reused on resume.
    """

    engine: Literal["auto", "batched", "loop"] = setting("auto", "How clients are carried out; auto is batched.")
    device: str = setting("auto", "auto, cpu, cuda, or mps (client by client).")
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32", "Products: tf32 is faster on a GPU and keeps three digits; bf16 keeps two, in passes through modules."
    )
    microbatch: int | None = setting(None, "Samples of a batch that go through a large model at a time; all unless given.", least=1)
    threads: int | None = setting(None, "Threads; all cores unless given.", least=1)
    memory: float | None = setting(None, "GiB of models and replies in a wave of lanes; 2, on a GPU half of what is free.", above=0)
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", least=1)
    checkpoint_gb: float = setting(50.0, "GB that a study's checkpoints write at most: beyond, they are further apart.", above=0)
    seeds_per_wave: int | None = setting(None, "Seeds run at once at most; as many as the memory holds unless given.", least=1)
    workers: int | None = setting(None, "Processes of this machine that carry out waves side by side; with --ray, waves at once.", least=1)
    ray: str | None = setting(None, "A Ray cluster that carries out waves: auto, or its address.")
    gpus_per_wave: int = setting(0, "GPUs that a wave on Ray asks for: 0 or 1.", least=0, most=1)

    def __post_init__(self) -> None:
        check_settings(self, "A study")
        if self.gpus_per_wave and self.ray is None:
            raise UserError("--gpus-per-wave is for waves on Ray: name a cluster with --ray, or leave it away.")

    @property
    def is_distributed(self) -> bool:
        """Whether waves are carried out by other processes than the one that writes."""
        return self.ray is not None or (self.workers or 1) > 1

    @property
    def is_on_gpu(self) -> bool:
        """Whether what lanes hold must fit a GPU."""
        return self.device.startswith("cuda")

    def settled(self) -> "Execution":
        """With the device and the memory that are here; of GPUs that are elsewhere nothing is known here."""
        if self.gpus_per_wave:
            return replace(self, device="cuda" if self.device == "auto" else self.device, memory=self.memory or 2.0)
        from coterie.engines.batched import resolve_device
        from coterie.engines.device import get_wave_memory  # here: the command line's help need not wait for torch

        device = resolve_device(self.device)
        return replace(self, device=device, memory=get_wave_memory(device) if self.memory is None else self.memory)

    @classmethod
    def read(cls, path: Path) -> "Execution":
        """How a study was carried out, from its folder."""
        tree = read_json_object(path)
        if unknown := tree.keys() - {f.name for f in fields(cls)}:
            raise UserError(f"{path} has an unknown setting {min(unknown)!r}: use the version that made the study.")
        try:
            return cls(**tree)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def override_workers(
    execution: Execution,
    *,
    workers: int | None = None,
    ray: str | None = None,
    gpus_per_wave: int | None = None,
    memory: float | None = None,
) -> Execution:
    """The execution with those workers, and that memory, that are said; how they are said in Python and on the command line alike."""
    said = {"workers": workers, "ray": ray, "gpus_per_wave": gpus_per_wave, "memory": memory}
    return replace(execution, **{name: value for name, value in said.items() if value is not None})  # type: ignore[arg-type]


LOCAL_SETTINGS, PLAN_SETTINGS, EXECUTION_SETTINGS = (tuple(get_setting_types(kind)) for kind in (Local, Plan, Execution))


def override_plan(said: Mapping[str, Any], base: Plan | None = None) -> Plan:
    """The plan with what was said by short names changed."""
    base = base or Plan()
    local = replace(base.local, **_select_settings(said, LOCAL_SETTINGS))
    return replace(base, local=local, **_select_settings(said, PLAN_SETTINGS))


def override_execution(said: Mapping[str, Any], base: Execution | None = None) -> Execution:
    """Likewise for how a study is carried out."""
    return replace(base or Execution(), **_select_settings(said, EXECUTION_SETTINGS))


def make_plan(said: Mapping[str, Any], plan: Plan | None, local: Local | None, base: Plan | None = None) -> Plan:
    """A plan from a whole one, a whole local training or short names; what is said twice, or is no setting, is refused. What is not said
    is as in `base`."""
    for name in said:
        if name not in (*PLAN_SETTINGS, *LOCAL_SETTINGS):
            raise UserError(f"There is no setting {name!r}: {suggest_names(name, (*PLAN_SETTINGS, *LOCAL_SETTINGS))}")
    if plan is not None:
        twice = [*said, *(["local"] if local is not None else [])]
        if twice:
            raise UserError(f"{', '.join(twice)} is said twice: by itself and in plan=...; say it in one place.")
        return plan
    if local is not None:
        twice = [name for name in said if name in LOCAL_SETTINGS]
        if twice:
            raise UserError(f"{', '.join(twice)} is said twice: by itself and in local=...; say it in one place.")
    base = base or Plan()
    return override_plan(said, base if local is None else replace(base, local=local))


def _select_settings(said: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name in names}
