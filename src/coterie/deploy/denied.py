"""What a site sends instead of a reply."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Denied:
    """Why an ask has no reply, in one sentence that may leave the site."""

    reason: str
    # the site does not want to, no longer may, could not, or has not approved the order yet
    cause: Literal["policy", "budget", "failure", "pending"] = "policy"

    def __str__(self) -> str:
        return self.reason
