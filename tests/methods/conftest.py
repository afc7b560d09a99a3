"""Methods are tested on what they do with a number of groups, not on how well it is found: the test of structure may be rough here."""

from functools import partial

import pytest

from coterie.grouping import structure
from coterie.grouping import structure as asked


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "find_groups", partial(structure.find_groups, draws=19))
