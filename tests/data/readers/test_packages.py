"""Packages: pinned by hash, downloaded by pip itself (here from a folder), read without being unpacked or installed."""

import hashlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.data.readers.packages import Package, read_r_frame
from data.small_packages import placed, r_files, tiny, wheel

METADATA = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
INSTALLABLE = {
    "tiny/data.txt": b"what it holds",
    "tiny-1.0.dist-info/METADATA": METADATA,
    "tiny-1.0.dist-info/WHEEL": WHEEL,
    "tiny-1.0.dist-info/RECORD": b"",
}


@pytest.mark.parametrize("file", ["tiny-1.0-py3-none-any.whl", "tiny-1.0.tar.gz", "tiny_1.0_all.deb"])
def test_a_member_of_each_kind_of_archive(root: Path, file: str) -> None:
    package = tiny(root, {"some/where": b"first", "some/where/else": b"second"}, file)
    assert package.members(root, ("some/where/else", "some/where")) == [b"second", b"first"]
    with pytest.raises(UserError, match=r"holds no file some/thing: is it the right package\?$"):
        package.members(root, ("some/thing",))


@pytest.mark.parametrize("file", ["tiny-1.0-py3-none-any.whl", "tiny-1.0.tar.gz", "tiny_1.0_all.deb"])
@pytest.mark.parametrize("length", [0, 5, 100])
def test_a_damaged_archive_is_one_sentence(root: Path, file: str, length: int) -> None:
    package = tiny(root, {"a": bytes(range(256)) * 2}, file)
    path = root / package.path
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UserError, match=r"its SHA-256 begins with \w{12}, not \w{12}; delete it and get it again\.$"):
        package.members(root, ("a",))
    known = replace(package, sha256=hashlib.sha256(path.read_bytes()).hexdigest())  # pinned damaged: it is still a sentence
    with pytest.raises(UserError, match=r"cannot be unpacked|holds no file"):
        known.members(root, ("a",))


def test_pip_downloads_what_is_pinned_and_nothing_else(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tiny(root, INSTALLABLE)
    index = tmp_path / "index"
    index.mkdir()
    shutil.move(root / package.path, index / package.file)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    found = package.get(root)
    assert found.read_bytes() == (index / package.file).read_bytes()
    assert [path.name for path in found.parent.iterdir()] == [package.file]
    shutil.rmtree(index)
    assert package.get(root) == found  # it is there and whole: nothing is downloaded
    found.write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"^pip could not download tiny 1.0: .*; get tiny-1.0-py3-none-any.whl by other means and put it"):
        package.get(root)
    assert found.read_bytes() == b"cut short"


def test_pip_refuses_another_file_of_the_same_name(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tiny(root, INSTALLABLE)
    (root / package.path).unlink()
    index = tmp_path / "index"
    index.mkdir()
    (index / package.file).write_bytes(wheel(INSTALLABLE | {"tiny/data.txt": b"something else"}))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(UserError, match=r"^pip could not download tiny 1.0: .*(?i:hash)"):
        package.get(root)
    assert list((root / "packages").iterdir()) == []


def test_without_the_client_one_sentence_says_what_to_do(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package(name="r-cran-tiny", version="1.0-2", client="apt-get", file="r-cran-tiny_1.0-2_all.deb", sha256="0" * 64)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^apt-get could not download r-cran-tiny 1.0-2: there is no apt-get here; get r-cran-tiny_1.0-2"):
        package.get(root)


def test_apt_gives_a_file_that_is_checked_again(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does what `apt-get download` does: it puts a file where it is called. Which file is decided by the hash alone."""
    file = "r-cran-tiny_1.0-2_all.deb"
    sha256 = placed(root, file, {"a": b"b"})
    package = Package(name="r-cran-tiny", version="1.0-2", client="apt-get", file=file, sha256=sha256)
    shutil.move(root / package.path, tmp_path / file)
    client = tmp_path / "bin" / "apt-get"
    client.parent.mkdir()
    client.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nassert sys.argv[1:] == ['download', 'r-cran-tiny=1.0-2']\n"
        f"shutil.copy({str(tmp_path / file)!r}, {file!r})\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent))
    with pytest.raises(UserError, match=r"its SHA-256 begins with"):
        replace(package, sha256="0" * 64).get(root)
    assert package.members(package.get(root).parents[1], ("a",)) == [b"b"]


def test_r_data_are_found_by_name() -> None:
    pytest.importorskip("rdata")
    one = pd.DataFrame({"y": [1.0, 2.0], "g": pd.Categorical(["F", "M"])})
    index, objects = r_files({"One": one, "Two": one.iloc[:1]})
    found = read_r_frame(index, objects, "Two", "here")
    assert found["y"].tolist() == [1.0]
    assert found["g"].astype(str).tolist() == ["F"]
    assert len(read_r_frame(index, objects, "One", "here")) == 2
    with pytest.raises(UserError, match=r"^here holds no data set Three: is it the right package\?$"):
        read_r_frame(index, objects, "Three", "here")
    with pytest.raises(UserError, match=r"^here cannot be read as R's data \(.*\): it is cut short or damaged"):
        read_r_frame(index, objects[:40], "One", "here")
    with pytest.raises(UserError, match=r"^here cannot be read as R's data"):
        read_r_frame(index[:20], objects, "One", "here")


def test_without_rdata_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdata", None)
    with pytest.raises(UserError, match=r"^Reading here needs the package rdata: install it with pip install rdata\.$"):
        read_r_frame(b"", b"", "One", "here")
