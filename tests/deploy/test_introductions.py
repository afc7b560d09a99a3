"""Who is there at the beginning of a run."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.deploy.server_run import Order, TooFewSitesError, introductions


class Says:
    """Every site says the same."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    def exchange(self, parcels: Mapping[str, bytes]) -> dict[str, bytes]:
        return {} if self.answer is None else dict.fromkeys(parcels, self.answer)


def introduce(answer: bytes | None, folder: Path) -> None:
    introductions(Order("a-run", "study", {}, minimum=2), Says(answer), ["a", "b"], "mclr", folder)


def test_sites_that_are_silent_may_be_back_in_a_moment(tmp_path: Path) -> None:
    with pytest.raises(TooFewSitesError, match="0 sites introduced themselves, 2 are needed"):
        introduce(None, tmp_path)


def test_sites_that_say_nonsense_are_named_and_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Site 'a' does not take part: no message that can be read") as error:
        introduce(b"", tmp_path)
    assert not isinstance(error.value, TooFewSitesError)
