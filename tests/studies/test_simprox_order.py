"""The page on SimProx's order: its table is what the scores beside the results' pages give."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pandas as pd

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simprox_order", ROOT / "studies" / "simprox_order.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


order = script()


def test_the_table_is_what_the_scores_give() -> None:
    text = (ROOT / "docs" / "results" / "simprox_order.md").read_text(encoding="utf-8")
    inside = text.partition(order.BEGIN)[2].partition(order.END)[0]
    assert inside.strip().splitlines() == list(order.order_lines())


def test_a_row_by_hand(tmp_path: Path) -> None:
    """SimProx 80 and 82, uniform FedAvg 79 and 79, FedAvg 84 and 84: +1 and +3, that is 2 with t(0.975, 1) * 1 = 12.71."""
    scores = {"simprox": (80, 82), "fedavg(weighting=uniform)": (79, 79), "fedavg": (84, 84)}
    rows = [("text events", method, seed, value, 1.5, -0.1) for method, found in scores.items() for seed, value in enumerate(found)]
    table = pd.DataFrame(rows, columns=["part", "method", "seed", "mean", "flatness", "by_samples"])
    table.to_csv(tmp_path / "simprox_medic.csv", index=False)
    (line,) = list(order.order_lines(tmp_path))[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[0] == "[CrisisMMD, text, by event](simprox_medic.md), 2"
    assert cells[1:4] == ["81.0", "+2.00 (-10.71 to +14.71)", "-3.00 (-15.71 to +9.71)"]
    assert cells[-3:] == ["-5.00 (-5.00 to -5.00)", "1.50", "-0.10"]
