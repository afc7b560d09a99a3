"""The rate of FedEx's tables is chosen on validation parts alone, and it is the one the study file has."""

import re
from pathlib import Path

from coterie.reproduce import find_study, read_reproduction
from study_scripts import script

ROOT = Path(__file__).resolve().parents[2]
rates = script("fedex_rate")


def test_a_rate_is_chosen_and_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    data = "digits/shards(clients=10,test=0.1,validation=0.1)"
    found = rates.choose(tmp_path, None, data, rounds=5)
    assert found.rates == rates.RATES
    assert found.chosen == max(zip(found.validation, found.rates, strict=True))[1]
    assert rates.choose(tmp_path, None, data, rounds=5) == found


def test_the_study_has_the_rate_that_its_file_says_was_best() -> None:
    study = read_reproduction(find_study("fedex_tables", ROOT / "studies"))
    settings = study.get_settings(study.part("shards_mclr_validated")).settings
    (said,) = [line for line in study.protocol.unsaid if "studies/fedex_rate.py" in line]
    seen = {float(rate): float(percent) for rate, percent in re.findall(r"(0\.\d+): (\d+\.\d+) %", said)}
    assert settings.data == rates.DATA
    assert tuple(seen) == rates.RATES
    assert settings.plan.local.lr == max(seen, key=seen.__getitem__)
