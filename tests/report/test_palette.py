"""No colour twice."""

import numpy as np
import pytest

from analysis.made_records import AVG, by_hand, flat
from coterie.analysis.findings import findings_of
from coterie.report.palette import _oklab, distinct_colours, separation
from coterie.report.style import DULL, GROUPS, METHODS, NOBODY, group_colours, styles_of


def test_the_axes_of_oklab() -> None:
    """Its author's own example: red is 0.628, 0.225, 0.126; white is 1 and no colour."""
    assert _oklab(np.array([[255, 0, 0]]))[0] == pytest.approx([0.628, 0.225, 0.126], abs=1e-3)
    assert _oklab(np.array([[255, 255, 255]]))[0] == pytest.approx([1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("count", [1, 8, 9, 30])
def test_groups_have_colours_of_their_own(count: int) -> None:
    found = group_colours(count)
    assert len({*found, NOBODY}) == count + 1
    assert found[: len(GROUPS)] == GROUPS[:count]
    assert separation(found) > 0.07 if count > 1 else True  # a difference of 0.02 can just be seen


def test_more_colours_leave_the_first_as_they_are() -> None:
    assert distinct_colours(20, METHODS, DULL)[:12] == distinct_colours(12, METHODS, DULL)
    assert separation((*distinct_colours(12, METHODS, DULL), *DULL)) > 0.07


def test_every_line_of_the_curves_has_its_own_colour() -> None:
    many = [f"fedsim(clusters={k})" for k in range(2, 12)]
    simple = ["fedavg(weighting=uniform)", "local", "fedavg+finetune(epochs=5)", "fedavg+finetune(epochs=2)"]
    records = by_hand({label: flat(50) for label in (AVG, *many, *simple)})
    drawn = list(styles_of(findings_of(records)).values())
    assert len({style.colour for style in drawn}) == len(drawn)
    assert len({style.name for style in drawn}) == len(drawn)
