"""What is written into a folder stays in it."""

from pathlib import Path

import pytest

from coterie._util.errors import UserError
from coterie._util.files import make_folder_inside, resolve_inside, write_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize(
    "names", [("..",), ("../root",), ("a", "..", "..", "b"), ("/etc",), (".",), ("",), ("a/../../elsewhere",), ("a\0b",)]
)
def test_a_name_that_leads_out_is_refused(root: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"nothing is written there|cannot be written to"):
        resolve_inside(root, *names)


def test_what_lies_within_is_found_though_the_root_itself_is_a_link(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    assert resolve_inside(link, "a", "b c") == link / "a" / "b c"


def test_links_are_neither_followed_nor_written_through(root: Path) -> None:
    elsewhere = root.with_name("elsewhere")
    (root / "out").symlink_to(elsewhere)
    (root / "near").mkdir()
    (root / "beside").symlink_to(root / "near")
    (root / "circle").symlink_to(root / "circle")
    for name in ("out", "circle"):
        with pytest.raises(UserError):
            resolve_inside(root, name, "deeper")
    for name in ("out", "beside"):
        with pytest.raises(UserError):
            make_folder_inside(root, name)
    victim = elsewhere / "victim"
    victim.write_text("precious")
    (root / "page").symlink_to(victim)
    assert write_inside(root, "page", "new").read_text() == "new"
    assert not (root / "page").is_symlink()
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in root.iterdir()) == ["beside", "circle", "near", "out", "page"]
    for name in ("../page", "near/page", "/page"):
        with pytest.raises(UserError, match="it would lie outside"):
            write_inside(root, name, "new")
