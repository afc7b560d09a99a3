"""The other sets, on small files of their real forms; damaged and wrong files are refused in a sentence and leave nothing behind."""

import gzip
import io
import json
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.dataset import DataSet
from coterie.data.federation import TEST, TRAIN
from coterie.data.sources import crisis, fedsim, images, texts
from data.small_files import image_bytes, leaf_content, write_json, write_tar


def shrink(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, counts: dict[str, int], clients: int | None = None) -> DataSet:
    """The set, with the counts of our small files."""
    known: DataSet = replace(getattr(module, name), counts=counts, clients=clients)
    monkeypatch.setattr(module, name, known)
    return known


@pytest.fixture
def femnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"writers": np.array(["f0", "f1", "f2"])}
    for part, n in (("train", 60), ("test", 12)):
        arrays |= {
            f"x_{part}": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
            f"y_{part}": (36 + np.arange(n) % 10).astype(np.uint8),
            f"w_{part}": (np.arange(n) % 3).astype(np.int32),
        }
    (root / "femnist_leaf").mkdir()
    np.savez(root / "femnist_leaf" / "femnist.npz", **arrays)
    shrink(monkeypatch, images, "FEMNIST", {"train": 60, "test": 12}, 3)
    return root


def test_femnist_keeps_its_own_split_and_turns_ink_to_one(femnist: Path) -> None:
    made = load("femnist", data_dir=femnist)
    assert made.ids == ("f0", "f1", "f2")
    assert (made.train.sizes.tolist(), made.test.sizes.tolist()) == ([20] * 3, [4] * 3)
    raw = np.load(femnist / "femnist_leaf" / "femnist.npz")["x_train"]
    assert np.allclose(made.x[:60], 1 - raw / 255, atol=1e-6)
    assert made.classes[36:39] == ("a", "b", "c")
    # another split by key, on request
    assert load("femnist/natural(test=0.5)", data_dir=femnist).test.sizes.tolist() == [12] * 3


def test_letters_gives_no_image_twice_and_says_how_far_amounts_shrank(femnist: Path) -> None:
    made = load("femnist/letters(clients=6)", data_dir=femnist)
    assert len(made.classes) == 26
    held = np.concatenate([made.train.indices, made.test.indices])
    assert len(np.unique(held)) == len(held) == 72 - made.provenance["left_over"]
    for u in range(6):
        own = np.concatenate([made.train[u], made.test[u]])
        assert {made.classes[c] for c in made.y[own]} == {"abcdefghij"[(u + j) % 10] for j in range(3)}
    assert all(0 < s <= 1 for s in made.provenance["shrunk"].values())
    assert min(made.provenance["shrunk"].values()) < 1
    with pytest.raises(UserError, match="cannot serve"):
        load("femnist/letters(clients=60)", data_dir=femnist)
    with pytest.raises(UserError, match="it divides femnist"):
        load("digits/letters(clients=6)")


def test_letters_shared_as_the_generator_shares_them_and_with_tests_that_no_client_trains_on(femnist: Path) -> None:
    """Seven or eight images a letter, of which two are held out and the others shared."""
    shared = load("femnist/letters(clients=40,classes=10,test=0.2,sharing=all)", data_dir=femnist)
    apart = load("femnist/letters(clients=40,classes=10,test=0.2,sharing=train)", data_dir=femnist)
    trained = np.unique(shared.train.indices)
    assert len(trained) == 72 - 2 * 10
    assert np.isin(shared.test.indices, trained).all()
    assert not np.isin(apart.test.indices, trained).any()
    assert shared.train.indices.tolist() == apart.train.indices.tolist()
    held = [{*shared.train[u], *shared.test[u]} for u in range(40)]
    for u, own in enumerate(held):
        assert sorted(shared.y[shared.test[u]]) == sorted(shared.y[apart.test[u]])
        assert len(own) == len(shared.train[u]) + len(shared.test[u])  # by one client no image is taken twice
    ordered = sorted(held, key=len)
    assert len(ordered[0]) < len(ordered[-1])
    assert all(fewer <= more for fewer, more in pairwise(ordered))  # all take the first images of a letter
    assert shared.provenance["sharing"] == "all"
    assert "shrunk" not in shared.provenance
    with pytest.raises(UserError, match="cannot use sharing='some'"):
        load("femnist/letters(sharing=some)", data_dir=femnist)
    with pytest.raises(UserError, match="too few images of 'a' to be shared"):
        load("femnist/letters(test=0.9,sharing=all)", data_dir=femnist)


def test_femnist_with_an_array_missing_or_cut_or_other_counts(femnist: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = femnist / "femnist_leaf" / "femnist.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is not a NumPy archive that can be read"):
        load("femnist", data_dir=femnist)
    np.savez(path, x_train=np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(UserError, match="has no array 'y_train': it holds x_train"):
        load("femnist", data_dir=femnist)
    path.write_bytes(whole)
    shrink(monkeypatch, images, "FEMNIST", {"train": 61, "test": 12}, 3)
    with pytest.raises(UserError, match="has 60 train samples where 61 are expected"):
        load("femnist", data_dir=femnist)
    shrink(monkeypatch, images, "FEMNIST", {"train": 60}, 4)
    with pytest.raises(UserError, match="has 3 clients where 4 are expected"):
        load("femnist", data_dir=femnist)
    assert not list(cache.rglob("*"))


def test_cifar10_from_folders_of_jpegs(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "cifar10_jpeg" / "cifar10_jpeg.tar.gz"
    members = {
        f"{part}/{name}/{i:04}.jpg": image_bytes(40 * c + i)
        for part in ("train", "test")
        for c, name in enumerate(("airplane", "cat"))
        for i in range(3)
    }
    write_tar(path, {"README.md": b"words", **members})
    shrink(monkeypatch, images, "CIFAR10", {"train": 6, "test": 6})
    made = load("cifar10/iid(clients=2)", data_dir=root)
    assert made.x.shape == (6, 3, 32, 32)
    assert sorted(made.y.tolist()) == [0, 0, 0, 3, 3, 3]
    assert made.x[0, :, 5, 5] * 255 == pytest.approx([0, 0, 255], abs=4)  # JPEG is lossy
    assert made.central is not None
    assert load("cifar10(side=28,grey=true)/iid(clients=2)", data_dir=root).input_shape == (28, 28)
    write_tar(path, {"train/dragon/1.jpg": image_bytes(1)})
    with pytest.raises(UserError, match="not in a folder train or test and then a class"):
        load("cifar10/iid", data_dir=root)
    write_tar(path, {"train/cat/1.jpg": b"no image"})
    with pytest.raises(UserError, match=r"1\.jpg is not an image that can be decoded"):
        load("cifar10/iid", data_dir=root)
    write_tar(path, members)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cut short or damaged"):
        load("cifar10/iid", data_dir=root)
    assert len(list((cache / "decoded").iterdir())) == 2


def test_cifar100_from_its_binary_version(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "cifar100"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("apple\nbear\ncloud\n")
    for part, fine in (("train", (0, 1, 2)), ("test", (2, 1))):
        (folder / f"{part}.bin").write_bytes(b"".join(bytes([0, c]) + bytes([c]) * 1024 + bytes([9]) * 2048 for c in fine))
    shrink(monkeypatch, images, "CIFAR100", {"train": 3, "test": 2})
    made = load("cifar100/iid(clients=1,test=0)", data_dir=root)
    assert made.classes == ("apple", "bear", "cloud")
    assert (made.x[2, :, 3, 3] * 255).tolist() == pytest.approx([2, 9, 9])
    (folder / "test.bin").write_bytes(b"\0" * 3000)
    with pytest.raises(UserError, match="is cut short: 3000 bytes"):
        load("cifar100/iid", data_dir=root)


def test_celeba_smiles_by_celebrity(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "celeba"
    folder.mkdir()
    files = [f"{i:06}.jpg" for i in range(1, 7)]
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for i, file in enumerate(files):
            archive.writestr(f"img_align_celeba/{file}", image_bytes(20 * i, 70))
    (folder / "list_attr_celeba.txt").write_text(
        "6\nBald Smiling Young\n" + "".join(f"{f} -1 {1 if i % 2 else -1} 1\n" for i, f in enumerate(files))
    )
    (folder / "identity_CelebA.txt").write_text("".join(f"{f} {1 + i // 3}\n" for i, f in enumerate(files)))
    (folder / "list_eval_partition.txt").write_text("".join(f"{f} {i // 3}\n" for i, f in enumerate(files)))
    shrink(monkeypatch, images, "CELEBA", {"train": 3, "validation": 3}, 2)
    made = load("celeba(side=16)/natural(test=0.34)", data_dir=root)
    assert made.ids == ("celebrity-1", "celebrity-2")
    assert made.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert made.x.shape == (6, 3, 16, 16)
    assert made.test.sizes.tolist() == [2, 2]
    (folder / "list_attr_celeba.txt").write_text("6\nBald Young\n")
    with pytest.raises(UserError, match="has no column 'Smiling'"):
        load("celeba(side=16)", data_dir=root)


@pytest.fixture
def bank(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = root / "banking77"
    write_json(folder / "categories.json", ["card", "fee", "rate"])
    (folder / "train.csv").write_text('text,category\n"Where, oh where, is my card?",card\n' + "A fee,fee\nWhich rate,rate\n" * 4)
    (folder / "test.csv").write_text("text,category\nLost card,card\n")
    shrink(monkeypatch, texts, "BANKING77", {"train": 9, "test": 1})
    return root


def test_banking_as_a_bag_and_as_tokens(bank: Path) -> None:
    made = load("banking77(width=64)/iid(clients=3)", data_dir=bank)
    assert made.x.shape == (9, 64)
    assert np.allclose(np.linalg.norm(made.x, axis=1), 1)
    assert made.central is not None
    tokens = load("banking77(features=tokens,length=12,vocabulary=50)/iid(clients=3)", data_dir=bank)
    assert tokens.x.dtype == np.int32
    assert tokens.x[0, :3].tolist() == [0, 0, 0]  # nine words and signs, padded in front
    assert (tokens.x[0, 3:] > 1).all()
    assert tokens.x.max() < 50


def test_intents_are_subsets_of_varied_size(bank: Path) -> None:
    made = load("banking77/intents(clients=3,fewest=1,most=2,test=0)", data_dir=bank)
    kinds = [len(np.unique(made.y[own])) for own in made.train]
    assert max(kinds) <= 3
    assert made.provenance["left_over"] == 0  # an intent that nobody drew is given to somebody
    with pytest.raises(UserError, match="fewest=3 and most=2 should run upwards from 1 to the 3 classes"):
        load("banking77/intents(clients=3,fewest=3,most=2)", data_dir=bank)


def test_a_category_that_is_not_listed(bank: Path, cache: Path) -> None:
    (bank / "banking77" / "test.csv").write_text("text,category\nLost card,cards\n")
    with pytest.raises(UserError, match=r"test.csv, line \d+: each line should be a text and one of the categories"):
        load("banking77/iid(clients=3)", data_dir=bank)
    (bank / "banking77" / "categories.json").write_text("[1, 2")
    with pytest.raises(UserError, match=r"categories.json is not JSON: .* in line 1, column 6"):
        load("banking77/iid(clients=3)", data_dir=bank)
    assert not list(cache.rglob("*"))


def test_tweets_by_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(
        root / "sent140" / "sent140_k30.json.gz", leaf_content({"u1": (["so glad", "glad again", "no"], [1, 1, 0]), "u2": (["sad"], [0])})
    )
    shrink(monkeypatch, texts, "SENT140", {"train": 4}, 2)
    made = load("sent140(features=tokens,length=3)", data_dir=root)
    assert made.ids == ("u1", "u2")
    assert made.classes == ("negative", "positive")
    assert made.x[0, -1] == made.x[1, -2]  # the same word has the same number
    assert load("sent140/natural(least=2)", data_dir=root).ids == ("u1",)


def test_goodreads_counts_and_text_share_their_split(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, n in (("train", 3), ("test", 1)):
        users = {u: ([f"{u} reads book {i}" for i in range(n)], [i % 2 for i in range(n)]) for u in ("a", "b")}
        write_json(root / "fed_goodreads" / "rawtext" / f"{part}.json.gz", leaf_content(users))
        counts = {u: ([[float(i), 1.0] for i in range(n)], y) for u, (_, y) in users.items()}
        write_json(root / "fed_goodreads" / "bow2517" / f"{part}.json.gz", leaf_content(counts))
    for name in ("GOODREADS", "GOODREADS_COUNTS"):
        shrink(monkeypatch, texts, name, {"train": 6, "test": 2}, 2)
    counted, worded = (load(spec, data_dir=root) for spec in ("goodreads", "goodreads(features=bag,width=16)"))
    assert counted.x[:3].tolist() == [[0, 1], [1, 1], [2, 1]]
    assert worded.input_shape == (16,)
    assert counted.train.indices.tolist() == worded.train.indices.tolist()
    assert counted.test.sizes.tolist() == [1, 1]
    held = load("goodreads/natural(validation=0.4)", data_dir=root)
    assert held.validation is not None
    assert held.validation.sizes.tolist() == [1, 1]
    assert held.test.sizes.tolist() == [1, 1]


def test_shakespeares_roles_never_read_in_training_what_they_guess_in_a_test(root: Path) -> None:
    path = root / "tinyshakespeare" / "input.txt.gz"
    path.parent.mkdir()
    speech = "".join(chr(97 + i % 26) for i in range(100))
    path.write_bytes(gzip.compress(f"LEAR:\n{speech}\n\n\nFOOL:\nno\n\nLEAR:\n{speech}\n".encode()))
    samples = texts.shakespeare(length=10, test=0.25, _data_dir=root)
    assert samples.owner_names == ("LEAR",)  # the fool says too little
    assert samples.given is not None
    # 201 letters: the cut is at 150; windows begin at 0 .. 190
    assert np.bincount(samples.given + 1).tolist() == [10, 140, 0, 41]
    assert texts.ALPHABET[samples.y[0]] == speech[10]
    made = load("shakespeare(length=10,test=0.25)", data_dir=root)
    assert made.provenance["left_over"] == 10
    assert made.provenance["roles_left_out"] == 1
    assert (samples.given[made.train.indices] == TRAIN).all()
    assert (samples.given[made.test.indices] == TEST).all()
    path.write_bytes(gzip.compress(b"no role here\nat all"))
    with pytest.raises(UserError, match="'no role here' should be a role and a colon"):
        texts.shakespeare(_data_dir=root)


def test_fed_mex_with_and_without_its_training_part(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"f_1": ([[0.1, 0.2], [0.3, 0.4]], [3, 5]), "f_2": ([[0.5, 0.6]], [6])}
    write_json(root / "fed_mex" / "test.json.gz", leaf_content(users))
    for name, counts in (("MEX", {"test": 3}), ("MEX_TEST", {"train": 3})):
        shrink(monkeypatch, fedsim, name, counts, 2)
    alone = load("fed_mex(part=test)", data_dir=root)
    assert (len(alone.classes), alone.ids) == (7, ("f_1", "f_2"))
    with pytest.raises(UserError, match=r"Fed-MEx is missing: put fed_mex/train.json.gz"):
        load("fed_mex", data_dir=root)
    write_json(root / "fed_mex" / "train.json.gz", leaf_content(users))
    assert load("fed_mex", data_dir=root).test.sizes.tolist() == [2, 1]


def test_image_tweet_pairs_by_event(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"split": split, "event": event, "text": f"help {event}", "image": f"{i}.jpg", "label": label}
        for i, (split, event, label) in enumerate(
            [("train", "fire", "a"), ("train", "flood", "b"), ("dev", "fire", "a"), ("test", "flood", "a")]
        )
    ]
    path = root / "crisismmd" / "pairs.jsonl.gz"
    write_tar(root / "crisismmd" / "images_96.tar", {f"{i}.jpg": image_bytes(50 * i, 96) for i in range(4)})
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    shrink(monkeypatch, crisis, "CRISISMMD", {"train": 2, "validation": 1, "test": 1}, 2)
    made = load("crisismmd(side=8,width=16)", data_dir=root)
    assert made.ids == ("fire", "flood")
    assert made.input_shape == (16 + 192,)
    assert made.provenance["columns"]["image"] == [16, 208]
    assert made.validation is not None
    assert made.validation.sizes.tolist() == [1, 0]
    assert made.inputs is not None
    assert (made.inputs.names, made.inputs.shapes) == (("text", "image"), ((16,), (3, 8, 8)))
    assert load("crisismmd(features=image,side=8)", data_dir=root).input_shape == (3, 8, 8)
    assert load("crisismmd(features=text,width=16)", data_dir=root).input_shape == (16,)
    path.write_bytes(gzip.compress(b'{"split": "train"}'))
    with pytest.raises(UserError, match=r"pairs.jsonl.gz, line 1: each line should be an object with split"):
        load("crisismmd", data_dir=root)


def test_medic_from_tables_and_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "medic"
    (folder / "data").mkdir(parents=True)
    head = "image_id\tevent_name\timage_path\tdamage_severity\tinformative\thumanitarian\tdisaster_types\n"
    for n, part in enumerate(("train", "dev", "test")):
        (folder / "data" / f"{n}.jpg").write_bytes(image_bytes(n, 50))
        rows = f"{n}\tfire\tdata/{n}.jpg\tmild\tyes\t{'ab'[n % 2]}\tfire\n{n}\tflood\tdata/{n}.jpg\tmild\tno\tb\tfire\n"
        (folder / f"MEDIC_{part}.tsv").write_text(head + rows)
    small = {task: replace(known, counts={"train": 2, "validation": 2, "test": 2}) for task, known in crisis.MEDIC.items()}
    monkeypatch.setattr(crisis, "MEDIC", small)
    made = load("medic(side=8)", data_dir=root)
    assert (made.ids, made.input_shape, made.classes) == (("fire", "flood"), (3, 8, 8), ("a", "b"))
    assert load("medic(task=informative,side=8)", data_dir=root).classes == ("no", "yes")
    with pytest.raises(UserError, match=r"holds one class only \('mild'\)"):
        load("medic(task=damage_severity)", data_dir=root)


def test_pillow_reads_what_the_hub_gives(root: Path) -> None:
    """A PNG with an alpha channel is an image like others."""
    from PIL import Image

    from coterie.data.readers.images import decode_image

    file = io.BytesIO()
    Image.new("RGBA", (5, 5), (1, 2, 3, 4)).save(file, "PNG")
    assert decode_image(file.getvalue(), "x").shape == (3, 5, 5)
    assert decode_image(file.getvalue(), "x", side=7, grey=True).shape == (7, 7)
