"""Methods are tested on what they do with a number of groups, not on how well it is found: the test of structure may be rough here."""

from functools import partial

import pytest

from coterie.grouping.choice.structure import ask as asked
from coterie.grouping.choice.structure import distinct


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "groups_of", partial(distinct.groups_of, draws=19))
