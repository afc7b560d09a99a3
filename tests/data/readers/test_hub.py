"""Hub sets, on local Parquet files with the hub's own schemas and feature types: what is read, and wrong columns refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie._util.errors import UserError
from coterie.data.catalogue import DATA_SETS, _name_hub_set, fetch, load
from coterie.data.dataset import DataSet
from coterie.data.sources import images, texts
from coterie.data.sources.crisis import MEDIC
from coterie.data.text import TextFeatures

datasets = pytest.importorskip("datasets")
DIGITS = [str(c) for c in range(10)]


def picture(value: int, mode: str = "L", side: int = 28) -> Image.Image:
    return Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255 - value))


def write(folder: Path, split: str, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
    """One split as the hub stores it: Parquet with the features in its metadata."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    made.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


def image() -> Any:
    return datasets.Image()


def value(kind: str) -> Any:
    return datasets.Value(kind)


def names(classes: list[str]) -> Any:
    return datasets.ClassLabel(names=classes)


def local(dataset: DataSet, folder: Path, **changes: Any) -> DataSet:
    """The set as we know it, except that it lies in a local folder and is small."""
    assert dataset.hub is not None
    # a local folder has one configuration, the default
    return replace(
        dataset, hub=replace(dataset.hub, repo=str(folder), revision=None, config=None, counts=changes.pop("counts", {}), **changes)
    )


def mnist_on_the_hub(folder: Path, label: str = "label", kind: Any = None) -> None:
    features = {"image": image(), label: kind or names(DIGITS)}
    for split, n in (("train", 20), ("test", 10)):
        write(folder, split, {"image": [picture(i) for i in range(n)], label: [i % 10 for i in range(n)]}, features)


def test_mnist_is_fetched_once_and_then_found(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_on_the_hub(tmp_path / "mnist")
    known = local(images.MNIST, tmp_path / "mnist", counts={"train": 20, "test": 10})
    monkeypatch.setitem(DATA_SETS, "mnist", known)
    monkeypatch.setattr(images, "MNIST", known)
    with pytest.raises(UserError, match="run 'coterie data get mnist'"):
        load("mnist/iid(clients=2)")
    assert fetch("mnist") == cache / "fetched" / "mnist"
    made = load("mnist/iid(clients=2)")
    assert made.x.shape == (20, 28, 28)
    assert made.x.dtype == np.float32
    assert sorted(np.unique(made.x).tolist()) == pytest.approx([i / 255 for i in range(20)])
    assert made.central is not None
    assert made.central[1].tolist() == list(range(10))
    assert "Hugging Face hub" in made.provenance["fetched"]


@pytest.mark.parametrize(
    ("label", "kind", "words"),
    [
        ("digit", None, "has no column 'label' for the label: it has image, digit."),
        ("label", "float32", "column 'label' should hold the label but is of type float32."),
    ],
)
def test_a_wrong_column_is_refused_and_nothing_is_kept(tmp_path: Path, cache: Path, label: str, kind: str | None, words: str) -> None:
    mnist_on_the_hub(tmp_path / "mnist", label, value(kind) if kind else None)
    with pytest.raises(UserError) as error:
        local(images.MNIST, tmp_path / "mnist").fetch()
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(cache.rglob("*"))


def test_a_column_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", "train", {"image": ["a", "b"], "label": [0, 1]}, {"image": value("string"), "label": names(["a", "b"])})
    write(tmp_path / "x", "test", {"image": ["a", "b"], "label": [0, 1]}, {"image": value("string"), "label": names(["a", "b"])})
    with pytest.raises(UserError, match="column 'image' should hold the image but is of type string"):
        local(images.MNIST, tmp_path / "x").fetch()


def test_wrong_counts_and_missing_splits_are_refused(tmp_path: Path, cache: Path) -> None:
    mnist_on_the_hub(tmp_path / "mnist")
    with pytest.raises(UserError, match="has 20 train samples where 60000 are expected"):
        local(images.MNIST, tmp_path / "mnist", counts=images.COUNTS).fetch()
    with pytest.raises(UserError, match="cannot read split 'dev' of"):
        local(images.MNIST, tmp_path / "mnist", splits={"train": "train", "validation": "dev"}).fetch()
    assert not list(cache.rglob("*"))


def test_femnist_by_writer(tmp_path: Path) -> None:
    features = {"image": image(), "writer_id": value("string"), "hsf_id": value("int64"), "character": names(list(images.CHARACTERS))}
    columns: dict[str, list[Any]] = {
        "image": [picture(255 - i) for i in range(6)],
        "writer_id": ["f0000_14", "f0000_14", "f0001_41"] * 2,
        "hsf_id": [0] * 6,
        "character": [0, 10, 36, 61, 0, 1],
    }
    write(tmp_path / "femnist", "train", columns, features)
    known = local(images.FEMNIST, tmp_path / "femnist")
    known.fetch()
    table = known.samples(lambda t: t)
    assert table.owner_names == ("f0000_14", "f0001_41")
    assert table.owners is not None
    assert table.owners.tolist() == [0, 0, 1, 0, 0, 1]
    assert [table.classes[c] for c in table.y] == ["0", "A", "a", "z", "0", "1"]
    assert table.given is None


def test_cifar_has_channels_first(tmp_path: Path) -> None:
    features = {"img": image(), "fine_label": names(["apple", "bear"]), "coarse_label": names(["fruit", "beast"])}
    for split in ("train", "test"):
        columns: dict[str, list[Any]] = {"img": [picture(i, "RGB", 32) for i in (7, 9)], "fine_label": [0, 1], "coarse_label": [0, 1]}
        write(tmp_path / "cifar100", split, columns, features)
    known = local(images.CIFAR100, tmp_path / "cifar100")
    known.fetch()
    made = known.samples(lambda t: t)
    assert made.x.shape == (2, 3, 32, 32)
    assert made.x[1, :, 0, 0].tolist() == [9, 0, 246]
    assert made.classes == ("apple", "bear")


def test_smiles_are_truth_values_by_celebrity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"image": image(), "celeb_id": value("int64"), "Smiling": value("bool"), "Young": value("bool")}
    for split in ("train", "valid", "test"):
        columns: dict[str, list[Any]] = {
            "image": [picture(50, "RGB", 80)] * 4,
            "celeb_id": [7, 7, 9, 9],
            "Smiling": [True, False, True, True],
            "Young": [True] * 4,
        }
        write(tmp_path / "celeba", split, columns, features)
    known = local(images.CELEBA, tmp_path / "celeba")
    monkeypatch.setattr(images, "CELEBA", known)
    known.fetch()
    made = load("celeba(side=16)")
    assert made.ids == ("7", "9")
    assert made.classes == ("not smiling", "smiling")
    assert made.input_shape == (3, 16, 16)
    assert (made.train.sizes + made.test.sizes).tolist() == [6, 6]
    assert made.y[made.train[1]].tolist() == [1] * len(made.train[1])


def test_banking_and_tweets_and_plays(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(
            tmp_path / "bank",
            split,
            {"text": ["my card?", "a fee"], "label": [0, 1]},
            {"text": value("string"), "label": names(["card", "fee"])},
        )
    bank = local(texts.BANKING77, tmp_path / "bank")
    bank.fetch()
    assert bank.samples(TextFeatures(width=8).table).x.shape == (2, 8)

    tweets: dict[str, list[Any]] = {
        "text": ["glad", "sad", "so sad"],
        "date": [""] * 3,
        "user": ["u", "v", "v"],
        "sentiment": [4, 0, 0],
        "query": [""] * 3,
    }
    kinds = {name: value("int32" if name == "sentiment" else "string") for name in tweets}
    write(tmp_path / "sent", "train", tweets, kinds)
    sent = local(texts.SENT140, tmp_path / "sent")
    sent.fetch()
    made = sent.samples(TextFeatures(width=8).table)
    assert (made.y.tolist(), made.owner_names) == ([1, 0, 0], ("u", "v"))
    write(tmp_path / "neutral", "train", {**tweets, "sentiment": [4, 2, 0]}, kinds)
    neutral = local(texts.SENT140, tmp_path / "neutral").hub
    assert neutral is not None
    with pytest.raises(UserError, match="holds a label of 2 where 0, 4 are expected"):
        neutral.table("Sent140")

    lines = {"character_id": ["LEAR", "LEAR", "FOOL"], "x": ["a" * 80, "b" * 80, "c" * 80], "y": ["b", "\n", "A"]}
    write(tmp_path / "plays", "train", lines, {name: value("string") for name in lines})
    plays = local(texts.SHAKESPEARE, tmp_path / "plays")
    plays.fetch()
    letters = plays.samples(lambda t: texts.make_letter_table(t, 80))
    assert [letters.classes[c] for c in letters.y] == ["b", "\n", "A"]
    assert letters.x.shape == (3, 80)
    assert texts.ALPHABET[letters.x[2, 5]] == "c"


def test_medic_names_its_classes_by_words(tmp_path: Path) -> None:
    features = {"image_id": value("string"), "event_name": value("string"), "image": image(), "humanitarian": value("string")}
    for split in ("train", "dev", "test"):
        columns: dict[str, list[Any]] = {
            "image_id": ["1", "2"],
            "event_name": ["flood", "fire"],
            "image": [picture(1, "RGB", 40)] * 2,
            "humanitarian": ["b", "a"],
        }
        write(tmp_path / "medic", split, columns, features)
    known = local(MEDIC["humanitarian"], tmp_path / "medic")
    known.fetch()
    made = known.samples(lambda t: t)
    assert made.x.shape == (6, 3, 96, 96)
    assert (made.classes, made.owner_names) == (("a", "b"), ("fire", "flood"))
    assert made.given is not None
    assert made.given.tolist() == [0, 0, 1, 1, 2, 2]


def test_any_set_by_name(tmp_path: Path) -> None:
    mnist_on_the_hub(tmp_path / "mine")
    made = load(f"hub('{tmp_path / 'mine'}',image=image,side=28,grey=true)/iid(clients=4)")
    assert made.x.shape == (20, 28, 28)
    assert load(f"hub('{tmp_path / 'mine'}',side=28,grey=true)/iid(clients=4)").x.shape == (20, 28, 28)  # its one image is found
    with pytest.raises(UserError, match="has no column 'writer' for the client"):
        load(f"hub('{tmp_path / 'mine'}',image=image,client=writer)")


def test_sets_that_are_not_on_the_hub_say_where_they_are() -> None:
    with pytest.raises(UserError, match="FedSim authors' repository"):
        fetch("goodreads")
    with pytest.raises(UserError, match="There is no data set 'mnistt' to get: did you mean 'mnist'"):
        fetch("mnistt")


def test_a_hub_set_by_its_name_and_the_column_of_clients(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "age": [20 + i for i in range(24)],
        "dose": [i / 3 for i in range(24)],
        "ill": [i % 2 for i in range(24)],
    }
    clinics = [f"clinic {i % 3}" for i in range(24)]
    features = {"age": value("int32"), "dose": value("float64"), "ill": names(["no", "yes"]), "clinic": value("string")}
    write(tmp_path / "table", "train", {**columns, "clinic": clinics}, features)
    made = load(f"hf:'{tmp_path / 'table'}'(label=ill)/natural(test=0.25)", client="clinic")
    assert (made.ids, made.classes, made.input_shape) == (("clinic 0", "clinic 1", "clinic 2"), ("no", "yes"), (2,))
    assert sorted(made.x[:, 0].tolist()) == [20.0 + i for i in range(24)]
    write(
        tmp_path / "texts",
        "train",
        {"said": ["good", "bad"] * 6, "label": [1, 0] * 6, "who": list("aabb") * 3},
        {"said": value("string"), "label": names(["no", "yes"]), "who": value("string")},
    )
    assert load(f"hf:'{tmp_path / 'texts'}'/natural(test=0.25)", client="who").ids == ("a", "b")


def test_what_a_hub_set_leaves_open_is_asked_for(tmp_path: Path) -> None:
    write(
        tmp_path / "two",
        "train",
        {"a": ["x"] * 4, "b": ["y"] * 4, "label": [0, 1] * 2},
        {"a": value("string"), "b": value("string"), "label": names(["no", "yes"])},
    )
    with pytest.raises(UserError, match="name the column to learn from, image=COLUMN or text=COLUMN: it has a, b"):
        load(f"hf:'{tmp_path / 'two'}'/iid(clients=2)")
    with pytest.raises(UserError, match="write hf:user/set"):
        load("hf:a b")


@pytest.mark.parametrize(
    ("spec", "client", "made"),
    [
        ("hf:user/set", "writer", "hub('user/set',client='writer')"),
        ("hf:set/natural(test=0.2)", None, "hub('set')/natural(test=0.2)"),
        ("hf:user/set(label=y)/dirichlet(alpha=1)/unseen(0.2)", None, "hub('user/set',label=y)/dirichlet(alpha=1)/unseen(0.2)"),
    ],
)
def test_names_of_the_hub_become_specs(spec: str, client: str | None, made: str) -> None:
    assert _name_hub_set(spec, client) == made
