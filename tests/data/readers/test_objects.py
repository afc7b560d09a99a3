"""Federations of frames, arrays and data set objects: what they hold, and that studies take them as they take specs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load


def frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"site": np.array(list("abcd"))[np.arange(rows) % 4], "age": rng.normal(size=rows), "dose": rng.normal(size=rows)})
    return made.assign(job=rng.choice(["x", "y"], rows), ill=np.where(made["age"] > 0, "yes", "no"))


class Columns:
    """What a Hugging Face data set is to us."""

    def __init__(self, names: tuple[str, ...] | None = None, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": SimpleNamespace(names=names)} if names else {}

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def test_a_frame_is_what_its_file_is(tmp_path: Path) -> None:
    table = frame()
    table.to_csv(tmp_path / "t.csv", index=False)
    options = {"scale": "standard", "categories": "onehot", "statistics": "client"}
    words = ",".join(f"{name}={value}" for name, value in options.items())
    read = load(f"csv('{tmp_path / 't.csv'}',label=ill,client=site,{words})/natural(test=0.25)", data_seed=3)
    made = ct.Federation.from_frame(table.set_index("age", drop=False), client="site", label="ill", test=0.25, data_seed=3, **options)
    assert np.array_equal(read.x, made.x)
    assert np.array_equal(read.y, made.y)
    assert np.array_equal(read.train.indices, made.train.indices)
    assert (read.ids, read.classes, made.name) == (made.ids, made.classes, "frame")


def test_arrays_with_names_or_numbers_for_classes() -> None:
    x, client = np.arange(24.0).reshape(12, 2), np.repeat(["a", "b"], 6)
    named = ct.Federation.from_arrays(x, np.array(["no", "yes"] * 6), client, test=0.5)
    assert named.classes == ("no", "yes")
    assert named.y.tolist() == [0, 1] * 6
    numbered = ct.Federation.from_arrays(x, np.array([0, 2] * 6), client, split=["train", "train", "test"] * 4, classes=["p", "q", "r"])
    assert numbered.classes == ("p", "q", "r")
    assert [part.tolist() for part in numbered.test] == [[2, 5], [8, 11]]
    with pytest.raises(UserError, match=r"labels are fractions such as 0\.5"):
        ct.Federation.from_arrays(x, np.array([0.5, 1] * 6), client, task="classification")
    with pytest.raises(UserError, match="a label and a client for each"):
        ct.Federation.from_arrays(x, np.zeros(11), client)


def test_data_sets_of_torch_and_of_columns() -> None:
    x, y = torch.arange(16.0).reshape(8, 2), torch.tensor([0, 1] * 4)
    whole = ct.Federation.from_datasets({"north": TensorDataset(x, y), "south": TensorDataset(x + 100, y)}, test=0.5)
    assert whole.ids == ("north", "south")
    assert whole.x[whole.train[1]].min() >= 100
    parts = {site: {"train": TensorDataset(x + add, y), "test": TensorDataset(x[:2] + add, y[:2])} for site, add in (("a", 0), ("b", 50))}
    split = ct.Federation.from_datasets(parts)
    assert (split.train.sizes.tolist(), split.test.sizes.tolist()) == ([8, 8], [2, 2])
    columns = {"a": Columns(("cat", "dog"), image=[np.full((2, 2), i) for i in range(6)], label=[0, 1] * 3)}
    images = ct.Federation.from_datasets({**columns, "b": Columns(("cat", "dog"), image=[np.zeros((2, 2))] * 4, label=[0, 1] * 2)})
    assert images.classes == ("cat", "dog")
    assert images.input_shape == (2, 2)
    flat = {site: Columns(u=[1.0, 2, 3, 4], v=[5, 6, 7, 8], label=["n", "y"] * 2, id=["p", "q", "r", "s"]) for site in "ab"}
    assert ct.Federation.from_datasets(flat, inputs=["u", "v"]).x[0].tolist() == [1, 5]
    with pytest.raises(UserError, match="no numbers but"):
        ct.Federation.from_datasets(flat)
    with pytest.raises(UserError, match="has no column 'lable': did you mean 'label'"):
        ct.Federation.from_datasets(flat, label="lable")
    with pytest.raises(UserError, match="different shapes"):
        ct.Federation.from_datasets({"a": TensorDataset(x, y), "b": TensorDataset(x[:, :1], y)})
    with pytest.raises(UserError, match="parts should be called train, validation, test"):
        ct.Federation.from_datasets({"a": {"train": TensorDataset(x, y)}, "b": TensorDataset(x, y)})


def test_a_hugging_face_data_set() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"u": datasets.Value("float32"), "label": datasets.ClassLabel(names=["cat", "dog"])})
    made = {site: datasets.Dataset.from_dict({"u": [0.0, 1, 2, 3], "label": [0, 1, 1, 0]}, features=kinds) for site in "ab"}
    found = ct.Federation.from_datasets(made)
    assert found.classes == ("cat", "dog")
    assert found.x[:4].tolist() == [[0], [1], [2], [3]]
    assert ct.Federation.from_datasets(
        {site: datasets.DatasetDict(train=each, test=each) for site, each in made.items()}
    ).test.sizes.tolist() == [4, 4]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UserError, match="cannot use scale='z-score'"):
        ct.Federation.from_frame(frame(), client="site", label="ill", scale="z-score")
    with pytest.raises(UserError, match="no setting 'tests' of a federation"):
        ct.Federation.from_frame(frame(), client="site", label="ill", categories="onehot", tests=0.1)


def test_studies_comparisons_and_inspections_take_them_and_resume_checks_them(tmp_path: Path) -> None:
    made = ct.Federation.from_frame(frame(), client="site", label="ill", drop="job", name="mine")
    found = ct.study("fedavg", data=made, rounds=2, out=tmp_path / "study")
    assert found.evidence.settings.data == "mine"
    ct.study("fedavg", data=made, rounds=2, out=tmp_path / "study", resume=True)
    other = ct.Federation.from_frame(frame().assign(age=lambda f: f["age"] + 1), client="site", label="ill", drop="job", name="mine")
    with pytest.raises(UserError, match="features of 'mine' differ"):
        ct.study("fedavg", data=other, rounds=2, out=tmp_path / "study", resume=True)
    compared = ct.compare(["fedprox"], data=[made, "synthetic(0,0,clients=4)"], out=tmp_path / "c", rounds=1, seeds=(0,), controls=False)
    assert [each.data for each in compared.federations] == ["mine", "synthetic(0,0,clients=4)"]
    from coterie.inspect import InspectPlan

    assert ct.inspect_data(made, plan=InspectPlan(references=19, pilot=None)).data == "mine"


@pytest.mark.parametrize("model", ["lstm(4,1,0,vocabulary=50,width=4)", "rnn(4,vocabulary=50,width=4)"])
def test_tokens_of_text_tables_are_read_by_recurrent_models(tmp_path: Path, model: str) -> None:
    table = frame(24).assign(says=[f"word {i % 5} and more" for i in range(24)])[["site", "says", "ill"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    text = f"csv('{tmp_path / 't.csv'}',label=ill,client=site,text=says,features=tokens,vocabulary=50,length=6)"
    made = ct.Federation.from_frame(table, client="site", label="ill", text="says", features="tokens", vocabulary=50, length=6)
    assert np.array_equal(load(text).x, made.x)
    assert made.x.dtype.kind == "i"
    assert made.input_shape == (6,)
    assert ct.study("fedavg", data=made, model=model, rounds=1).table()["final"].notna().all()
