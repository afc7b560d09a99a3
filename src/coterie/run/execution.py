"""Execution settings, and settings by keyword: `lr`, `rounds`, `threads` as given in Python, on the command line and in a study file.

The keywords are read from `Plan`, `Local` and `Execution`; none is listed twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from coterie._util.errors import UserError, suggest_names
from coterie._util.json_io import read_json_object
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import check_settings, get_setting_types, setting


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Engine, device, threads, memory. None of this changes results, except the route and the precision of a GPU's products.

    Both are stored, and reused on resume. Each field's help is printed by ``coterie run --help``.

    Example:
        >>> result = ct.study("fedavg", data="heart", execution=ct.Execution(threads=2))  # doctest: +SKIP
    """

    panel: ClassVar[str] = "Execution"  # of the command line's help

    engine: Literal["auto", "batched", "loop"] = setting("auto", "How clients are executed: auto (batched), batched or loop.")
    device: str = setting("auto", "Device: auto, cpu, cuda, or mps (client by client).")
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32", "Precision of products: float32; tf32, faster on a GPU (three digits); bf16, in passes through modules (two)."
    )
    microbatch: int | None = setting(None, "Samples of a batch that go through a large model at a time. Default: all.", minimum=1)
    threads: int | None = setting(None, "Threads. Default: all cores.", minimum=1)
    memory: float | None = setting(None, "GiB of models and replies in a wave. Default: 2, on a GPU half of what is free.", above=0)
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", minimum=1)
    checkpoint_gb: float = setting(50.0, "GB that a study's checkpoints write at most: beyond, they are further apart.", above=0)
    seeds_per_wave: int | None = setting(None, "Seeds run at once, at most. Default: as many as the memory holds.", minimum=1)
    workers: int | None = setting(None, "Processes of this machine that run waves in parallel; with --ray, waves at once.", minimum=1)
    ray: str | None = setting(None, "A Ray cluster that runs waves: auto, or its address.")
    gpus_per_wave: int = setting(0, "GPUs that a wave on Ray asks for: 0 or 1.", minimum=0, maximum=1)

    def __post_init__(self) -> None:
        check_settings(self, "A study")
        if self.gpus_per_wave and self.ray is None:
            raise UserError("--gpus-per-wave is for waves on Ray: name a cluster with --ray, or omit it.")

    @property
    def is_distributed(self) -> bool:
        """Whether waves run in other processes than the one that writes."""
        return self.ray is not None or (self.workers or 1) > 1

    @property
    def is_on_gpu(self) -> bool:
        """Whether lanes must fit a GPU."""
        return self.device.startswith("cuda")

    def override(self, now: "Execution") -> "Execution":
        """The stored settings of a study with the workers, threads and memory of the command that resumes it.

        On a GPU that was too small, a study can so be resumed in smaller waves.
        """
        return replace(
            self,
            workers=now.workers,
            ray=now.ray,
            gpus_per_wave=now.gpus_per_wave,
            threads=now.threads,
            microbatch=now.microbatch or self.microbatch,
            memory=now.memory or self.memory,
        )

    def resolve(self) -> "Execution":
        """With the device and the memory of this machine; the GPUs of a cluster are not known here."""
        if self.gpus_per_wave:
            return replace(self, device="cuda" if self.device == "auto" else self.device, memory=self.memory or 2.0)
        from coterie.engines.batched import resolve_device
        from coterie.engines.device import get_wave_memory  # here: the command line's help need not wait for torch

        device = resolve_device(self.device)
        return replace(self, device=device, memory=get_wave_memory(device) if self.memory is None else self.memory)

    @classmethod
    def read(cls, path: Path) -> "Execution":
        """The execution settings of a study, from its folder."""
        tree = read_json_object(path)
        if unknown := tree.keys() - {f.name for f in fields(cls)}:
            raise UserError(f"{path} has an unknown setting {min(unknown)!r}: use the version that made the study.")
        try:
            return cls(**tree)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def override_workers(execution: Execution, *, workers: int | None = None, ray: str | None = None, memory: float | None = None) -> Execution:
    """The execution with the workers and the memory that are given."""
    given = {"workers": workers, "ray": ray, "memory": memory}
    return replace(execution, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


LOCAL_SETTINGS, PLAN_SETTINGS, EXECUTION_SETTINGS = (tuple(get_setting_types(kind)) for kind in (Local, Plan, Execution))


def override_plan(given: Mapping[str, Any], base: Plan | None = None) -> Plan:
    """The plan with settings changed by name."""
    base = base or Plan()
    local = replace(base.local, **_select_settings(given, LOCAL_SETTINGS))
    return replace(base, local=local, **_select_settings(given, PLAN_SETTINGS))


def override_execution(given: Mapping[str, Any], base: Execution | None = None) -> Execution:
    """Likewise for execution settings."""
    return replace(base or Execution(), **_select_settings(given, EXECUTION_SETTINGS))


def make_plan(given: Mapping[str, Any], plan: Plan | None, local: Local | None, base: Plan | None = None) -> Plan:
    """A plan from a whole one, a whole local training or settings by name, others as in `base`; what is given twice is refused."""
    for name in given:
        if name not in (*PLAN_SETTINGS, *LOCAL_SETTINGS):
            raise UserError(f"There is no setting {name!r}: {suggest_names(name, (*PLAN_SETTINGS, *LOCAL_SETTINGS))}")
    twice = [*given, *(["local"] if local is not None else [])] if plan is not None else [name for name in given if name in LOCAL_SETTINGS]
    if twice and (plan is not None or local is not None):
        whole = "plan" if plan is not None else "local"
        raise UserError(f"{', '.join(twice)} is given twice: by itself and in {whole}=...; give it in one place.")
    if plan is not None:
        return plan
    base = base or Plan()
    return override_plan(given, base if local is None else replace(base, local=local))


def _select_settings(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}
