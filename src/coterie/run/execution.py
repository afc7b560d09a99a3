"""How a study is carried out."""

from dataclasses import dataclass, fields
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
    memory: float = setting(2.0, "GiB of models and replies held at once: the size of a wave of lanes.", above=0)
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", least=1)
    seeds_per_wave: int | None = setting(None, "Seeds run at once at most; as many as the memory holds unless given.", least=1)

    def __post_init__(self) -> None:
        check_settings(self, "A study")

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
