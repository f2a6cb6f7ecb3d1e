"""Label tables: writing and reading them, and applying them to a data set."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from npmatch.data.images import SelectedImages, file_of
from npmatch.data.labels import apply_label_table, encode_label_table, image_name, positions_by_name, read_label_table
from npmatch.errors import NPMatchError

# Possible file names: any bytes but NUL, as Python decodes them.
file_names = st.binary(min_size=1, max_size=20).map(lambda name: os.fsdecode(name.replace(b"\0", b"0")))


@given(st.dictionaries(file_names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_any_names_and_labels_survive_the_round_trip(tmp_path_factory, labels):
    table = tmp_path_factory.getbasetemp() / "round.csv"
    table.write_bytes(encode_label_table(labels))
    assert {row.path: row.label for row in read_label_table(table)} == labels


@pytest.mark.parametrize("name", ["=1+1.png", "+a", "-a", "@a", 'a "b"', "a,b", " a ", "a\nb", "a\r\nb", "été", "\t"])
def test_names_that_are_special_in_spreadsheets_and_shells_are_kept(tmp_path, name):
    table = tmp_path / "labels.csv"
    table.write_bytes(encode_label_table({name: name}))
    with table.open(newline="") as file:  # an independent reader sees the name itself
        assert list(csv.reader(file)) == [["path", "label"], [name, name]]
    assert [(row.path, row.label) for row in read_label_table(table)] == [(name, name)]


def test_a_table_as_a_spreadsheet_saves_it_is_read(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("﻿uncertainty,label, path\n0.5,cat,a.png\n0.4,,b.png\n", encoding="utf-8")
    rows = list(read_label_table(table))
    assert [(row.path, row.label) for row in rows] == [("a.png", "cat"), ("b.png", "")]
    assert rows[1].where == f"{table}, line 3"


def test_a_table_without_the_columns_is_refused(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("file,class\na.png,cat\n")
    with pytest.raises(NPMatchError, match=r"names the columns file,class; it must name path,label"):
        list(read_label_table(table))
    with pytest.raises(NPMatchError, match="cannot be read"):
        list(read_label_table(tmp_path / "none.csv"))


def test_an_unclosed_quote_swallows_no_rows(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text('path,label\na.png,cat\n"b.png,dog\nc.png,cat\n')
    with pytest.raises(NPMatchError, match=r"labels.csv, line 3: not valid CSV \(unexpected end of data\); close"):
        list(read_label_table(table))


def test_a_table_is_read_from_a_pipe(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"path;label\na.png;cat\n")
    os.close(writing)
    assert [(row.path, row.label) for row in read_label_table(Path(f"/dev/fd/{reading}"))] == [("a.png", "cat")]
    os.close(reading)


def test_images_without_file_names_are_named_by_their_position(memory_dataset, file_dataset):
    assert image_name(memory_dataset.train, 12) == "#12"
    assert positions_by_name(file_dataset.train)["012.png"] == 12


def test_a_table_replaces_labels_and_nothing_else(memory_dataset, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_bytes(encode_label_table({"#50": "b", "#0": "c"}))
    labelled = apply_label_table(memory_dataset, table)
    expected = memory_dataset.train.labels.clone()
    expected[50], expected[0] = 1, 2
    assert torch.equal(labelled.train.labels, expected)
    assert memory_dataset.train.labels[50] == -1  # the original data set is unchanged
    assert labelled.train.names == []


@pytest.mark.parametrize("kind", ["memory_dataset", "file_dataset"])
def test_images_from_other_folders_are_appended_to_the_training_set(kind, request, tmp_path):
    dataset = request.getfixturevalue(kind)
    outside = [str(tmp_path / "else" / name) for name in ("b.png", "a.png")]
    os.mkdir(tmp_path / "else")
    for shade, path in enumerate(outside):
        Image.new("RGB", (8, 8), (shade, 9, 9)).save(path)
    table = tmp_path / "labels.csv"
    table.write_bytes(encode_label_table({outside[0]: "a", image_name(dataset.train, 45): "c", outside[1]: "b"}))
    train = apply_label_table(dataset, table).train
    assert train.labels[45].item() == 2
    assert train.labels[60:].tolist() == [0, 1]
    assert len(train.images) == len(train.names) == 62
    assert train.names[:60] == list(positions_by_name(dataset.train))
    assert train.names[60:] == outside
    pixels = train.images.take(torch.tensor([3, 60, 61]))
    assert torch.equal(pixels[0], dataset.train.images.take(torch.tensor([3]))[0])
    assert pixels[1:, :, 0, 0].tolist() == [[0, 9, 9], [1, 9, 9]]
    assert str(file_of(SelectedImages(train.images, torch.tensor([5, 61])), 1)) == outside[1]
    own = file_of(train.images, 5)
    assert own is None if kind == "memory_dataset" else own.name == "005.png"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"#50": "d"}, r"line 2: unknown class 'd'; .*a new class needs a new run"),
        ({"#60": "a"}, r"line 2: the data has no image '#60'"),
    ],
)
def test_labels_that_do_not_fit_the_data_name_their_line(memory_dataset, tmp_path, labels, message):
    table = tmp_path / "labels.csv"
    table.write_bytes(encode_label_table(labels))
    with pytest.raises(NPMatchError, match=message):
        apply_label_table(replace(memory_dataset), table)
