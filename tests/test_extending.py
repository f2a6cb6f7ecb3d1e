"""What docs/extending.md shows runs as it is printed: each file is written, then its commands are called."""

import re
import shlex
import sys
from pathlib import Path

import pytest

import npmatch
from doc_commands import ROOT, blocks, commands, small
from few_photos import save_photo
from npmatch import user_code as imports
from npmatch.cli import main

PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture
def page_files(tmp_path, monkeypatch):
    """The page's modules in the working folder, and the pictures that its data source reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_typed", set())
    modules = [re.match(r"# (\w+)\.py\n", block) for block in blocks(PAGE, ("python",))]
    for named in filter(None, modules):
        Path(f"{named[1]}.py").write_text(named.string)
        monkeypatch.delitem(sys.modules, named[1], raising=False)
    for i, word in enumerate([*["cat"] * 10, *["dog"] * 10, *["other"] * 10]):
        save_photo(Path("pictures") / f"{word}.{i}.jpg", seed=i, size=(24, 20))


def test_the_commands_run(page_files, capfd):
    lines = [line for line in commands(PAGE) if " compare " not in line]  # which starts processes of its own
    assert len(lines) == 5
    for line in lines:
        words = small(shlex.split(line)[1:])
        assert main(words) == 0, f"{line}: {capfd.readouterr().err}"


def test_the_battery_passes(page_files):
    (check,) = (block for block in blocks(PAGE, ("python",)) if "check_algorithm" in block)
    exec(check, {})


def test_the_pictures_are_labelled_by_their_names(page_files):
    import pets

    dataset = pets.load(Path("pictures"))
    assert dataset.train.labels.tolist() == [0] * 10 + [1] * 10 + [-1] * 10
    assert dataset.train.names[0] == "cat.0.jpg"
    assert isinstance(dataset.train.images, npmatch.ImageStore)
