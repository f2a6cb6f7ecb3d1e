"""CSV files of images: their dialects and their faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from npmatch.data import load_dataset
from npmatch.errors import NPMatchError

WriteImage = Callable[..., np.ndarray]


@pytest.fixture
def folder(tmp_path: Path, write_image: WriteImage) -> Path:
    for seed, name in enumerate(("a", "b", "c", "d", "with, comma")):
        write_image(tmp_path / "images" / f"{name}.png", seed)
    return tmp_path


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    table = folder / "table.csv"
    table.write_text(text, encoding=encoding)
    return table


def error_for(folder: Path, text: str) -> str:
    with pytest.raises(NPMatchError) as caught:
        load_dataset("csv", write(folder, text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOOD = "path,label\nimages/b.png,dog\nimages/a.png,cat\nimages/c.png,\n"


def test_rows_keep_their_order_and_empty_labels_are_unlabelled(folder: Path, write_image: WriteImage) -> None:
    dataset = load_dataset("csv", write(folder, GOOD), image_size=8)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [1, 0, -1]
    assert dataset.train.names == ["images/b.png", "images/a.png", "images/c.png"]
    assert dataset.test is None
    expected = write_image(folder / "again.png", seed=0)
    assert (dataset.train.images.take(torch.tensor([1]))[0].permute(1, 2, 0).numpy() == expected).all()


def test_the_source_folder_accepts_a_csv(folder: Path) -> None:
    assert load_dataset("folder", write(folder, GOOD)).name == "csv"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_spreadsheet_dialects(folder: Path, encoding: str) -> None:
    rows = [
        "label, path ,notes",
        '"ça va", images/a.png ,x',
        ' dog ,"images/with, comma.png",',
        "",
        ",images/c.png",
    ]
    text = "".join(f"{row}\r\n" for row in rows)
    dataset = load_dataset("csv", write(folder, text, encoding))
    assert dataset.class_names == ("dog", "ça va")
    assert dataset.train.labels.tolist() == [1, 0, -1]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_spreadsheets_of_countries_with_a_decimal_comma(folder: Path, separator: str) -> None:
    rows = ["path,label,notes", "images/a.png,cat,1", '"images/with| comma.png",dog,2', "images/c.png,,", ",,", " , ,"]
    text = "".join(f"{row.replace(',', separator).replace('|', ',')}\r\n" for row in rows)
    dataset = load_dataset("csv", write(folder, text, "utf-8-sig"))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.names == ["images/a.png", "images/with, comma.png", "images/c.png"]
    assert dataset.train.labels.tolist() == [0, 1, -1]


def test_absolute_paths(folder: Path) -> None:
    dataset = load_dataset("csv", write(folder, GOOD.replace("images/b", f"{folder}/images/b")))
    assert dataset.train.images.take(torch.tensor([0])).shape == (1, 3, 64, 64)


def test_the_split_column(folder: Path) -> None:
    rows = ["path,label,split", "images/a.png,cat,train", "images/b.png,dog,", "images/c.png,dog,test"]
    text = "\n".join([*rows, "images/d.png,,train"])
    dataset = load_dataset("csv", write(folder, text))
    assert dataset.train.labels.tolist() == [0, 1, -1]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.test.names == ["images/c.png"]


def test_wrong_columns(folder: Path) -> None:
    message = error_for(folder, "file,class\nimages/a.png,cat\n")
    assert "columns file,class; it must name path,label" in message
    assert "columns path|label; it must" in error_for(folder, "path|label\nimages/a.png|cat\n")
    assert "columns (none)" in error_for(folder, "")


def test_rows_that_cannot_be_used(folder: Path) -> None:
    assert "line 5: " in (message := error_for(folder, GOOD + "images/none.png,cat\n"))
    assert f"{folder / 'images' / 'none.png'}: no such file" in message
    assert "line 5: images/../images/a.png is on line 3 too" in error_for(folder, GOOD + "images/../images/a.png,cat\n")
    assert "line 5: no path" in error_for(folder, GOOD + ",cat\n")
    assert "1 class(es) among the training rows" in error_for(folder, "path,label\nimages/a.png,cat\n")
    header = "path,label,split\nimages/a.png,cat,train\nimages/b.png,dog,train\n"
    assert "line 4: split 'dev'; use train or test" in error_for(folder, header + "images/c.png,dog,dev\n")
    assert "line 4: test image with label 'cow'" in error_for(folder, header + "images/c.png,cow,test\n")
    assert "line 4: test image with label ''" in error_for(folder, header + "images/c.png,,test\n")


def test_a_table_of_which_no_file_exists(folder: Path) -> None:
    message = error_for(folder, GOOD.replace("images/", "photos/images/"))
    assert "none of its 3 files exists: paths must be relative to the folder of the table" in message
    assert f"line 2: {folder / 'photos/images/b.png'}: no such file" in message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('"images/d.png,dog\nimages/e.png,cat\n', "line 5: not valid CSV (unexpected end of data); close every quote"),
        ('"images/d.png,dog\nimages/e.png,cat\n"images/f.png",cat\n', "line 5: not valid CSV (',' expected after"),
        ('images/d.png,"dog\nimages/e.png,cat"\n', "line 5: the label goes over several lines"),
        ("images/with, comma.png,dog\n", "line 5: 3 cells for 2 columns; put quotes around"),
        ("images/d.png\0,dog\n", "line 5: the path contains a NUL character"),
    ],
)
def test_rows_that_would_be_misread_name_their_line(folder: Path, rows: str, message: str) -> None:
    assert message in error_for(folder, GOOD + rows)


@pytest.mark.parametrize("columns", ["path,label,label", "path,label,path", "path,label,split,split"])
def test_a_column_that_is_named_twice(folder: Path, columns: str) -> None:
    assert f"names the column {columns.split(',')[-1]} twice" in error_for(folder, GOOD.replace("path,label", columns))


def test_cells_missing_at_the_end_and_empty_ones_too_many_are_accepted(folder: Path) -> None:
    dataset = load_dataset("csv", write(folder, GOOD.replace("dog\n", "dog,,\n") + "images/d.png\n"))
    assert dataset.train.labels.tolist() == [1, 0, -1, -1]


def test_files_that_are_not_csv(folder: Path) -> None:
    table = folder / "table.csv"
    table.write_bytes(b"path,label\n\xff\xfe,cat\n")
    with pytest.raises(NPMatchError, match="line 2: not a CSV file in UTF-8"):
        load_dataset("csv", table)
    with pytest.raises(NPMatchError, match="a folder; name the CSV in it"):
        load_dataset("csv", folder)
    with pytest.raises(NPMatchError, match="no such file or folder"):
        load_dataset("csv", folder / "none.csv")
