"""A user's own files: what is read, and every way they can be wrong, in one sentence, with nothing left in the cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.partitions import natural
from coterie.data.readers.user_files import from_torch
from data.small_files import image_bytes, leaf_content, write_json

GOOD = "site,age,dose,ill\n" + "".join(f"{'ab'[i % 2]},{i},{i / 2},{'yes' if i % 3 else 'no'}\n" for i in range(12))


def spec(path: Path, kind: str = "csv", **settings: str) -> str:
    return f"{kind}('{path}',{','.join(f'{k}={v}' for k, v in settings.items())})"


def refused(text: str, cache: Path) -> str:
    """The sentence with which a spec is refused; nothing may be left in the cache."""
    with pytest.raises(UserError) as error:
        load(text)
    assert "\n" not in str(error.value)
    assert not [file for file in cache.rglob("*") if file.is_file()]
    return str(error.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_with_a_client_column(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    path.write_text(GOOD)
    if kind == "parquet":
        pd.read_csv(path).to_parquet(path)
    made = load(spec(path, kind, label="ill", client="site") + "/natural(test=0.5)")
    assert made.ids == ("a", "b")
    assert made.classes == ("no", "yes")
    assert made.x[4].tolist() == [4, 2]
    assert made.y[:4].tolist() == [0, 1, 1, 0]
    assert (made.train.sizes.tolist(), made.test.sizes.tolist()) == ([3, 3], [3, 3])
    assert made.provenance["features"] == ["age", "dose"]


def test_a_table_without_clients_is_divided_like_any_set(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(GOOD.replace("site", "room").replace("a,", "1,").replace("b,", "2,"))
    assert len(load(spec(path, label="ill") + "/iid(clients=3)")) == 3
    with pytest.raises(UserError, match="has to be divided among clients"):
        load(spec(path, label="ill"))


def test_a_table_with_texts_and_a_split(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text(
        "who,says,mood,part\n" + "".join(f"{'ab'[i % 2]},word {i},{i % 3 % 2},{'test' if i > 7 else 'train'}\n" for i in range(12))
    )
    made = load(spec(path, label="mood", client="who", text="says", split="part", width="32"))
    assert made.input_shape == (32,)
    assert (made.train.sizes.tolist(), made.test.sizes.tolist()) == ([4, 4], [2, 2])
    path.write_text(path.read_text().replace("test", "later"))
    with pytest.raises(UserError, match="'later' is no part: the split should hold train, validation, test"):
        load(spec(path, label="mood", client="who", text="says", split="part"))


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (GOOD, {"label": "ill", "client": "hospital"}, "has no client column 'hospital'"),
        (GOOD, {"label": "il", "client": "site"}, "has no label column 'il': did you mean 'ill'?"),
        (GOOD.replace("5,2.5", ",2.5"), {"label": "ill", "client": "site"}, "line 7 of table.csv has no number in column 'age'"),
        (
            GOOD.replace("5,2.5", "inf,2.5"),
            {"label": "ill", "client": "site"},
            "line 7 of table.csv holds a value that is no finite number",
        ),
        (GOOD.replace("no", "yes"), {"label": "ill", "client": "site"}, "holds one class only ('yes')"),
        (GOOD.replace("b,3,", ",3,"), {"label": "ill", "client": "site"}, "line 5 of table.csv has no value in the client column 'site'"),
        (GOOD, {"label": "ill"}, "column 'site' does not hold numbers"),
        ("site,ill\na,1\nb,0\n", {"label": "ill", "client": "site"}, "has no column left to learn from beside ill, site"),
        ("site,ill\na,1,7,8\nb,0\n" * 2, {"label": "ill", "client": "site"}, "cannot be read as csv"),
        ("", {"label": "ill", "client": "site"}, "cannot be read as csv"),
        ("site,age,ill\n", {"label": "ill", "client": "site"}, "holds no samples"),
    ],
)
def test_bad_tables(tmp_path: Path, cache: Path, text: str, settings: dict[str, str], words: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert words in refused(spec(path, **settings), cache)


def test_files_that_are_not_there(tmp_path: Path, cache: Path) -> None:
    assert "there is no file" in refused(spec(tmp_path / "no.csv", label="y"), cache)
    assert "holds no LEAF data" in refused(spec(tmp_path / "no", "leaf"), cache)
    assert "holds no images" in refused(spec(tmp_path / "no", "images"), cache)
    assert "there is no file" in refused(spec(tmp_path / "no.npz", "npz"), cache)
    (tmp_path / "table.parquet").write_bytes(b"PAR1 but no more")
    assert "cannot be read as parquet" in refused(spec(tmp_path / "table.parquet", "parquet", label="y"), cache)


def test_a_path_below_the_data_folder(root: Path) -> None:
    (root / "table.csv").write_text(GOOD)
    assert len(load("csv('table.csv',label=ill,client=site)", data_dir=root)) == 2


LEAF = {"u": ([[1.0, 2.0], [3.0, 4.0]], [0, 1]), "v": ([[5.0, 6.0]], [1])}


@pytest.mark.parametrize("form", ["{part}.json", "{part}.json.gz", "{part}/all_data_0.json"])
def test_leaf_in_its_usual_forms(tmp_path: Path, form: str) -> None:
    for part in ("train", "test"):
        write_json(tmp_path / "set" / form.format(part=part), leaf_content(LEAF))
    made = load(spec(tmp_path / "set", "leaf"))
    assert made.ids == ("u", "v")
    assert (made.train.sizes.tolist(), made.test.sizes.tolist()) == ([2, 1], [2, 1])


def test_leaf_texts_words_as_labels_and_fields(tmp_path: Path) -> None:
    write_json(tmp_path / "plays.json", leaf_content({"LEAR": (["blow win", "ds and c"], ["d", "r"])}))
    made = load(spec(tmp_path / "plays.json", "leaf", features="tokens", length="4"))
    assert (made.classes, made.input_shape) == (("d", "r"), (4,))
    write_json(tmp_path / "tweets.json", leaf_content({"u": ([["1", "monday", "q", "u", "so glad"], ["2", "d", "q", "u", "sad"]], [1, 0])}))
    assert load(spec(tmp_path / "tweets.json", "leaf", field="4", width="8")).input_shape == (8,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": ["u", "w"]}, "user 'w' has no x and y in user_data"),
        ({"num_samples": [2, 2]}, "user 'v' has 1 x and 1 y where num_samples is 2"),
        ({"num_samples": [2]}, "names 2 users and 1 sizes"),
        ({"num_samples": [2, 0], "user_data": {"u": {"x": [[1], [2]], "y": [0, 1]}, "v": {"x": [], "y": []}}}, "client 'v' has no samples"),
        (
            {"user_data": {"u": {"x": [[1], [2, 3]], "y": [0, 1]}, "v": {"x": [[1]], "y": [0]}}},
            "neither texts nor lists of numbers of one length",
        ),
        ({"user_data": {"u": {"x": [[1], [2]], "y": [0, None]}, "v": {"x": [[1]], "y": [0]}}}, "neither whole numbers nor words"),
        (
            {"user_data": {"u": {"x": [[1], [2]], "y": [0, -1]}, "v": {"x": [[1]], "y": [0]}}},
            "holds a label of -1 where 0 to 0 are expected",
        ),
        ({"user_data": {"u": {"x": [[1], [float("nan")]], "y": [0, 1]}, "v": {"x": [[1]], "y": [0]}}}, "sample 1 holds a value that is no"),
    ],
)
def test_bad_leaf(tmp_path: Path, cache: Path, change: dict[str, Any], words: str) -> None:
    write_json(tmp_path / "x.json", {**leaf_content(LEAF), **change})
    assert words in refused(spec(tmp_path / "x.json", "leaf"), cache)


def test_malformed_json(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "x.json").write_text('{"users": [')
    assert "is not JSON" in refused(spec(tmp_path / "x.json", "leaf"), cache)
    (tmp_path / "x.json").write_text("[1, 2]")
    assert "is not in LEAF's form" in refused(spec(tmp_path / "x.json", "leaf"), cache)
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    assert "is not text in UTF-8" in refused(spec(tmp_path / "x.json", "leaf"), cache)


def test_folders_of_images_by_client(tmp_path: Path, cache: Path) -> None:
    for client in ("anna", "bert"):
        for c, kind in enumerate(("cat", "dog")):
            for i in range(3):
                file = tmp_path / "photos" / client / kind / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(image_bytes(100 * c + i, 20, "PNG"))
    made = load(spec(tmp_path / "photos", "images", side="8"))
    assert (made.ids, made.classes, made.input_shape) == (("anna", "bert"), ("cat", "dog"), (3, 8, 8))
    assert made.x[0, :, 0, 0] * 255 == pytest.approx([0, 0, 255])
    assert made.train.sizes.tolist() == [5, 5]
    whole = load(spec(tmp_path / "photos" / "anna", "images", side="8", clients="false", grey="true") + "/iid(clients=2)")
    assert whole.input_shape == (8, 8)
    (tmp_path / "photos" / "stray.png").write_bytes(image_bytes(1))
    with pytest.raises(UserError, match="should lie at CLIENT/CLASS/file"):
        load(spec(tmp_path / "photos", "images"))


def arrays(n: int = 12) -> dict[str, Any]:
    return {"x": np.arange(2.0 * n).reshape(n, 2), "y": np.arange(n) % 3, "client": np.array(list("aab") * (n // 3))}


def test_numpy_archives_and_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **arrays(), classes=np.array(["r", "g", "b"]))
    made = load(spec(tmp_path / "set.npz", "npz"))
    assert (made.ids, made.classes) == (("a", "b"), ("r", "g", "b"))
    assert made.x.dtype == np.float32
    (tmp_path / "set").mkdir()
    for name, array in {**arrays(), "x": arrays()["x"].astype(np.float32), "client": np.array([7, 7, 3] * 4)}.items():
        np.save(tmp_path / "set" / f"{name}.npy", array)
    mapped = load(spec(tmp_path / "set", "npz"))
    assert isinstance(mapped.x, np.memmap)
    assert mapped.ids == ("3", "7")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((12, 2))}, "x.npy should be float32 or whole numbers"),
        ({"split": np.array(["train"] * 12), "client": None}, "split.npy have client.npy beside it"),
        ({"y": np.full(12, -1)}, "holds a label of -1"),
        ({"y": np.full(12, 1)}, "holds one class only"),
        ({"x": None}, "should hold x.npy and y.npy"),
        ({"x": b"no array"}, "is not a NumPy array that can be read"),
    ],
)
def test_bad_folders_of_arrays(tmp_path: Path, cache: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / "set").mkdir()
    good = {**arrays(), "x": np.zeros((12, 2), np.float32)}
    for name, array in {**good, **change}.items():
        file = tmp_path / "set" / f"{name}.npy"
        if isinstance(array, bytes):
            file.write_bytes(array)
        elif array is not None:
            np.save(file, array)
    assert words in refused(spec(tmp_path / "set", "npz"), cache)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((11, 2))}, "x has 11 rows and y has 12"),
        ({"y": np.zeros(12)}, "y one whole number a sample"),
        ({"y": np.arange(12) % 3 - 1}, "holds a label of -1 where 0 to 1 are expected"),
        ({"x": np.full((12, 2), np.nan)}, "sample 0 holds a value that is no finite number"),
        ({"client": np.array(["a"] * 11)}, "is inconsistent: its features, labels and clients number 11, 12"),
        ({"classes": np.array(["only", "two"])}, "holds a label of 2 where 0 to 1 are expected"),
    ],
)
def test_bad_arrays(tmp_path: Path, cache: Path, change: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "set.npz", **{**arrays(), **change})
    assert words in refused(spec(tmp_path / "set.npz", "npz"), cache)


def test_a_torch_data_set_and_the_ids_of_its_clients() -> None:
    dataset = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 1, 0]))
    made = natural(from_torch(dataset, ["a", "b", "a", "b", "a", "b"]), test=0.34)
    assert made.ids == ("a", "b")
    assert (made.train.sizes.tolist(), made.test.sizes.tolist()) == ([1, 1], [2, 2])
    assert made.x[3].tolist() == [6, 7]
    with pytest.raises(UserError, match="number 5, 6"):
        from_torch(dataset, ["a"] * 5)
