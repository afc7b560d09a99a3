"""Bundles of numbers and of labels: in the target's own units, on disk and back, and what real federations do not carry."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.core.tasks import Task
from coterie.data.catalogue import load
from coterie.deploy.bundle.files import HEAD_FILE, read_bundle, write_bundle
from coterie.deploy.bundle.rows import describe_row_scores, score_rows
from coterie.deploy.site.data import load_site_data
from coterie.run.study import study

NUMBERS, MARKS = "linear(clients=3,samples=20)", "linear(multilabel,clients=3,samples=20,labels=2)"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = {}
    for spec in (NUMBERS, MARKS):
        made = ct.get_bundle(study("fedavg", data=spec, rounds=2, lr=0.1), "client-1")
        folder = tmp_path_factory.mktemp("bundle") / "b"
        write_bundle(made, folder)
        found[spec] = (made, read_bundle(folder), folder)
    return found


def test_numbers_come_back_in_their_own_units(bundles: dict[str, Any]) -> None:
    made, read, folder = bundles[NUMBERS]
    x = load(NUMBERS).x[:7]
    assert read.task == made.task == load(NUMBERS).task
    by_hand = x.astype(np.float64) @ made.models[0][:-1] + made.models[0][-1]
    np.testing.assert_allclose(read.predict(x), made.task.mean + made.task.deviation * by_hand, rtol=1e-5)
    assert read.predict(x).tolist() == made.predict(x).tolist()
    with pytest.raises(UserError, match="A regression has no probabilities: use predict"):
        read.predict_proba(x)
    assert '"regression"' in (folder / HEAD_FILE).read_text()


def test_labels_come_back_as_marks(bundles: dict[str, Any]) -> None:
    _, read, _ = bundles[MARKS]
    x = load(MARKS).x[:9]
    chances = read.predict_proba(x)
    assert read.predict(x).tolist() == (chances >= 0.5).astype(int).tolist()
    assert read.classes_.tolist() == ["label 0", "label 1"]
    outputs = x.astype(np.float64) @ read.models[0][:-2].reshape(2, -1).T + read.models[0][-2:]
    np.testing.assert_allclose(chances, 1 / (1 + np.exp(-outputs)), rtol=1e-5)


def test_a_bundle_with_a_wrong_task_is_refused(bundles: dict[str, Any], tmp_path: Path) -> None:
    made, _, _ = bundles[NUMBERS]
    write_bundle(made, tmp_path / "b")
    head = tmp_path / "b" / HEAD_FILE
    head.write_text(head.read_text().replace('"regression"', '"ranking"'))
    with pytest.raises(UserError, match=r"is wrong at task\.name"):
        read_bundle(tmp_path / "b")


def test_rows_with_known_labels_by_hand() -> None:
    """Prices 10, 20, 30 said as 12, 20, 27: errors 2, 0, 3; always saying 15, the mean of 10 and 20, is off by 5, 5 and 15."""
    task, true, response = Task("regression", 3.0, 9.0), np.array([10.0, 20, 30]), np.array([12.0, 20, 27])
    words, numbers = describe_row_scores(response, true, task)
    assert words == "mean absolute error 1.667, root mean squared error 2.082, R2 0.935 against the mean of these rows"
    assert numbers["r2"] == pytest.approx(r2_score(true, response))
    found = score_rows(response, true, np.array([10.0, 20]), task)
    assert (found.mean, found.usual) == pytest.approx((5 / 3, 25 / 3))
    assert found.low == 0  # an error is never below
    marks = Task("multilabel")
    assert (
        describe_row_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]), marks)[0]
        == "75.0 % of the labels right, all of them in 1 of 2 rows"
    )
    assert describe_row_scores(np.array([1, 0]), np.array([1, 1]), Task())[0] == "1 of 2 right, 50.0 %"


def test_sites_of_a_real_federation_have_classes() -> None:
    with pytest.raises(UserError, match="makes it a regression, which sites do not train by their own description: simulate it"):
        load_site_data(NUMBERS)


def test_a_real_federation_minimises_the_usual_loss() -> None:
    with pytest.raises(UserError, match="A real federation carries classifications, and loss=absolute is for a regression"):
        Plan(loss="absolute").check_real()
