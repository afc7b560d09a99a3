"""How a study is carried out."""

from dataclasses import dataclass
from typing import Literal

from coterie.core.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Engine, device, threads, memory. None of this changes what a study finds, except the route, which is stored and reused on resume."""

    engine: Literal["auto", "batched", "loop"] = setting("auto", "How clients are carried out; auto is batched.")
    device: str = setting("auto", "auto, cpu or cuda.")
    threads: int | None = setting(None, "Threads; all cores unless given.", least=1)
    memory: float = setting(2.0, "GiB of models and replies held at once: the size of a wave of lanes.", above=0)
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", least=1)
    seeds_per_wave: int | None = setting(None, "Seeds run at once at most; as many as the memory holds unless given.", least=1)

    def __post_init__(self) -> None:
        check_settings(self, "A study")
