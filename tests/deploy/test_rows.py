"""A site's rows: found by name or by place, and refused in one sentence."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.labels import encode_classes
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.rows import read_rows

UNNAMED = Bundle(Origin("m", "d", 0, 0, 1), "mclr", (2, 2), ("no", "yes"), np.zeros((1, 10), np.float32), ("global",), {"a": 0})
NAMED = replace(UNNAMED, input_shape=(3,), features=("age", "cp=2", "cp=3"))


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return path


def test_features_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    rows = read_rows(file(tmp_path, "cp=3,id,cp=2,age,y\n1,p7,0,61,yes\n0,p8,1,5e1,no\n"), NAMED, "y")
    assert rows.x.tolist() == [[61, 0, 1], [50, 1, 0]]
    assert rows.y is not None
    assert rows.y.tolist() == [1, 0]


def test_a_column_of_categories_stands_for_its_indicators(tmp_path: Path) -> None:
    assert read_rows(file(tmp_path, "age,cp\n61,3\n50,2.0\n40,1\n"), NAMED).x.tolist() == [[61, 0, 1], [50, 1, 0], [40, 0, 0]]


def test_without_names_the_columns_of_numbers_are_taken_in_order(tmp_path: Path) -> None:
    rows = read_rows(file(tmp_path, "who,0,1,2,3,y\nann,1,2,3,4,1\nbob,5,6,7,8,0\n"), UNNAMED, "y")
    assert rows.x.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert rows.y is not None
    assert rows.y.tolist() == [1, 0]
    assert UNNAMED.answer(rows.x).classes.shape == (2,)  # flat rows are put into shape
    assert read_rows(file(tmp_path, "0,1,2,3\n1,2,3,4\n"), UNNAMED).x.shape == (1, 4)  # names that count are names


@pytest.mark.parametrize(
    ("text", "bundle", "label", "sentence"),
    [
        ("age\n61\n", NAMED, None, "lacks the column 'cp=2' and 1 more: the model takes age, cp=2, cp=3"),
        ("age,cp\n61,x\n", NAMED, None, "has 'x', which is no number, in row 0, column 'cp'"),
        ("age,cp\n61,3\n,2\n", NAMED, None, "has nothing in row 1, column 'age'"),
        ("age,cp\n61,3\n50\n", NAMED, None, "has nothing in row 1, column 'cp'"),
        ("age,cp\n61,inf\n", NAMED, None, "has 'inf', which is no number"),
        ("age,cp\n61,3,9\n", NAMED, None, "cannot be read as CSV"),
        ("age,cp\n", NAMED, None, "holds no rows"),
        ("", NAMED, None, "cannot be read as CSV"),
        ("age,cp\n61,3\n", NAMED, "z", "has no label column 'z'"),
        ("age,cp,y\n61,3,maybe\n", NAMED, "y", "holds the label 'maybe': the model knows no, yes"),
        ("a,b,c,d,e\n1,2,3,4,5\n", UNNAMED, None, "has 5 columns of numbers: the model takes 4"),
        ("a,b,c,d\n1,2,3,x\n", UNNAMED, None, "has 3 columns of numbers beside 'd': the model takes 4"),
        ("a,b,c,d\n1,2,3,4\n1,2,3,x\n", UNNAMED, None, "has 'x', which is no number, in row 1, column 'd'"),
        ("0.5,0.5,1,2\n1,2,3,4\n", UNNAMED, None, "begins with a row of numbers"),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(text: str, bundle: Bundle, label: str | None, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_rows(file(tmp_path, text), bundle, label)
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_arrays(tmp_path: Path) -> None:
    x = np.arange(8.0).reshape(2, 2, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x.reshape(2, 4), y=np.array([1, 0]))
    assert read_rows(tmp_path / "x.npy", UNNAMED).x.tolist() == x.tolist()
    rows = read_rows(tmp_path / "x.npz", UNNAMED, "y")
    assert rows.y is not None
    assert rows.y.tolist() == [1, 0]


def test_arrays_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 5)))
    (tmp_path / "bad.npy").write_text("no array")
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", y=np.zeros(2))
    np.savez(tmp_path / "y.npz", x=np.zeros((2, 4)), y=np.zeros(3, np.int64))
    for name, label, sentence in (
        ("x.npy", None, "holds float64 of shape (2, 5): the model takes rows of shape (2, 2)"),
        ("x.npy", "y", "holds samples only"),
        ("bad.npy", None, "is not a NumPy array that can be read"),
        ("objects.npy", None, "is not a NumPy array that can be read"),
        ("x.npz", None, "has no array 'x'"),
        ("y.npz", "y", "x has 2 rows and y has 3"),
        ("none.csv", None, "There is no file"),
    ):
        with pytest.raises(UserError) as caught:
            read_rows(tmp_path / name, UNNAMED, label)
        assert sentence in str(caught.value)


def test_labels_are_names_and_numbers_only_where_no_name_is_one() -> None:
    assert encode_classes(["yes", "0", 1], ("no", "yes"), "here").tolist() == [1, 0, 1]
    assert encode_classes(["7", 3], ("3", "7"), "here").tolist() == [1, 0]
    with pytest.raises(UserError, match="holds the label '0'"):
        encode_classes(["0"], ("3", "7"), "here")
