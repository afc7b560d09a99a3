"""What a site sends instead of a reply."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Denied:
    """Why an ask has no reply, in one sentence that may leave the site."""

    reason: str
    cause: Literal["policy", "budget", "failure"] = "policy"  # the site does not want to, no longer may, or could not

    def __str__(self) -> str:
        return self.reason
