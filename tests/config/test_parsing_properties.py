"""Any content of a table, a configuration or a command line is either read or an error of one line."""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from npmatch.config.tree import flatten, make_config, parse_overrides, read_config_file
from npmatch.data.sources.tables import list_csv
from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.types import Prediction

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
).filter(lambda name: name.strip() == name and name not in (".", ".."))
labels = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=10).map(str.strip).filter(bool)


def assert_one_line(error: NPMatchError) -> None:
    assert str(error)
    assert "\n" not in str(error)


@QUICK
@given(
    st.dictionaries(names, st.sampled_from(["cat", "dog", ""]), min_size=1, max_size=6),
    st.permutations(["path", "label"]),
)
def test_a_table_of_any_file_names_is_read_as_it_was_written(rows, columns):
    with TemporaryDirectory() as folder:
        root, rows = Path(folder), {"a.png": "cat", "b.png": "dog", **{f"_{name}.png": v for name, v in rows.items()}}
        for name in rows:
            Image.new("L", (2, 2)).save(root / name, "PNG")
        with open(root / "table.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({"path": name, "label": label} for name, label in rows.items())
        dataset = list_csv(root / "table.csv").dataset("csv", 2)
        assert dataset.train.names == list(rows)
        found = [dataset.class_names[i] if i >= 0 else "" for i in dataset.train.labels.tolist()]
        assert found == list(rows.values())


@QUICK
@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: ("path,label\n" + text).encode("utf-8", "replace"))
)
def test_a_table_of_any_bytes_is_one_line(content):
    with TemporaryDirectory() as folder:
        (Path(folder) / "table.csv").write_bytes(content)
        with pytest.raises(NPMatchError) as problem:
            list_csv(Path(folder) / "table.csv").dataset("csv", 2)
        assert_one_line(problem.value)
        assert "table.csv" in str(problem.value)


@QUICK
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_a_configuration_file_of_any_bytes_is_keys_or_one_line(content):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_bytes(content)
        try:
            layer = read_config_file(path)
        except NPMatchError as problem:
            assert_one_line(problem)
        else:
            assert isinstance(layer, dict)


values = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**7)
    | st.floats()
    | st.text(max_size=12)
    | st.lists(st.integers(), max_size=3)
)
KEYS = sorted(make_config({}).flat())


@QUICK
@example({"preset": [0]})
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
def test_any_value_of_any_key_is_taken_or_refused_in_one_line_that_names_a_key(layer):
    try:
        config = make_config({}, layer)
    except NPMatchError as problem:
        assert_one_line(problem)
    else:
        # What was taken survives being written down and read again.
        again = make_config({}, flatten(yaml.safe_load(yaml.safe_dump(config.nested()))))
        assert repr(again) == repr(config)


@QUICK
@given(st.lists(st.text(max_size=20), max_size=4))
def test_words_are_settings_or_one_line(words):
    try:
        layer = parse_overrides(words)
    except NPMatchError as problem:
        assert_one_line(problem)
    else:
        assert all("=" in word for word in words)
        assert {word.partition("=")[0] for word in words} == set(layer)


@QUICK
@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 2**31))
def test_metrics_of_any_prediction_are_finite_and_within_their_bounds(n, classes, seed):
    import torch

    from npmatch.objectives.losses import entropy

    generator = torch.Generator().manual_seed(seed)
    logits = 50 * torch.randn(n, classes, generator=generator) * (torch.rand((), generator=generator) > 0.5)
    probs = logits.softmax(-1)
    y = torch.randint(classes, (n,), generator=generator)
    found = scores(Prediction(probs, entropy(probs)), y).asdict()
    right = (probs.argmax(-1) == y).float().mean().item()
    assert found["error"] == pytest.approx(100 * (1 - right), abs=1e-3)
    assert 0 <= found["ece"] <= 100
    assert 0 <= found["uce"] <= 100
    assert 0 <= found["brier"] <= 2
    assert all(value == value and abs(value) != float("inf") for value in found.values() if isinstance(value, float))


@pytest.mark.parametrize("rows", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_long_tables_end_at_the_first_problem(tmp_path, rows):
    (tmp_path / "table.csv").write_text("path,label\n" + "gone.png,cat\nlost.png,dog\n" * (rows // 2))
    with pytest.raises(NPMatchError, match=r"gone\.png"):
        list_csv(tmp_path / "table.csv").dataset("csv", 2)
    for name in ("gone.png", "lost.png"):
        Image.new("L", (2, 2)).save(tmp_path / name)
    with pytest.raises(NPMatchError, match=r"line 4: gone\.png is on line 2 too"):
        list_csv(tmp_path / "table.csv").dataset("csv", 2)
