"""How a study is carried out."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.core.settings import check_settings, setting


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
    def elsewhere(self) -> bool:
        """Whether waves are carried out by other processes than the one that writes."""
        return self.ray is not None or (self.workers or 1) > 1

    @property
    def on_gpu(self) -> bool:
        """Whether what lanes hold must fit a GPU."""
        return self.device.startswith("cuda")

    def settled(self) -> "Execution":
        """With the device and the memory that are here; of GPUs that are elsewhere nothing is known here."""
        if self.gpus_per_wave:
            return replace(self, device="cuda" if self.device == "auto" else self.device, memory=self.memory or 2.0)
        from coterie.engines.free_memory import wave_memory  # here: the command line's help need not wait for torch
        from coterie.engines.make import resolve_device

        device = resolve_device(self.device)
        return replace(self, device=device, memory=wave_memory(device) if self.memory is None else self.memory)

    @classmethod
    def read(cls, path: Path) -> "Execution":
        """How a study was carried out, from its folder."""
        tree = read_object(path)
        if unknown := tree.keys() - {f.name for f in fields(cls)}:
            raise UserError(f"{path} has an unknown setting {min(unknown)!r}: use the version that made the study.")
        try:
            return cls(**tree)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def carried_by(
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
