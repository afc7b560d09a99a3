"""No colour twice."""

from collections.abc import Sequence

import numpy as np
import pytest

from analysis.made_records import AVG, by_hand, flat
from coterie.analysis.findings import compute_findings
from coterie.report.style import (
    GREY,
    GROUPS,
    METHODS,
    MUTED,
    OKABE_ITO,
    UNASSIGNED,
    assign_styles,
    parse_rgb,
    pick_distinct_colours,
    pick_group_colours,
    pick_method_colours,
    to_oklab,
)


def compute_separation(colours: Sequence[str]) -> float:
    """The distance in OKLab of the two that are most alike."""
    lab = to_oklab(np.array([parse_rgb(colour) for colour in colours]))
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    return float(apart[~np.eye(len(lab), dtype=bool)].min(initial=np.inf))


def test_the_axes_of_oklab() -> None:
    """Its author's own example: red is 0.628, 0.225, 0.126; white is 1 and no colour."""
    assert to_oklab(np.array([[255, 0, 0]]))[0] == pytest.approx([0.628, 0.225, 0.126], abs=1e-3)
    assert to_oklab(np.array([[255, 255, 255]]))[0] == pytest.approx([1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("count", [1, 8, 9, 30])
def test_groups_have_colours_of_their_own(count: int) -> None:
    found = pick_group_colours(count)
    assert len({*found, UNASSIGNED}) == count + 1
    assert found[: len(GROUPS)] == GROUPS[:count]
    assert compute_separation(found) > 0.07 if count > 1 else True  # a difference of 0.02 can just be seen


def test_more_colours_leave_the_first_as_they_are() -> None:
    assert pick_distinct_colours(20, METHODS, MUTED)[:12] == pick_distinct_colours(12, METHODS, MUTED)
    assert compute_separation((*pick_distinct_colours(12, METHODS, MUTED), *MUTED)) > 0.07


def test_every_line_of_the_curves_has_its_own_colour() -> None:
    many = [f"fedsim(clusters={k})" for k in range(2, 12)]
    simple = ["fedavg(weighting=uniform)", "local", "fedavg+finetune(epochs=5)", "fedavg+finetune(epochs=2)"]
    records = by_hand({label: flat(50) for label in (AVG, *many, *simple)})
    drawn = list(assign_styles(compute_findings(records).roles).values())
    assert len({style.colour for style in drawn}) == len(drawn)
    assert len({style.name for style in drawn}) == len(drawn)


def test_a_method_has_one_colour_whatever_it_is_shown_beside() -> None:
    alone = pick_method_colours(["FeSEM"])["FeSEM"]
    beside = pick_method_colours(["FedAvg", "their.own:Method", "FedSim(clusters=2)", "FeSEM", "FeSEM, fine-tuned", "Training alone"])
    assert beside["FeSEM"] == alone == OKABE_ITO["orange"]
    assert beside["FedSim(clusters=2)"] == pick_method_colours(["FedSim(clusters=4)"])["FedSim(clusters=4)"]
    assert beside["FedAvg"] == GREY
    assert len(set(beside.values())) == len(beside)
    records = by_hand({label: flat(50) for label in (AVG, "ifca(groups=2)", "fesem(groups=2)")})
    assert assign_styles(compute_findings(records).roles)["fesem(groups=2)"].colour == alone
