"""The tutorial's commands, as they stand, on the folder it makes."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_commands import ROOT, commands

sys.path.insert(0, str(ROOT / "scripts"))
import run_tutorial as runner


def test_outputs_go_under_their_commands(tmp_path):
    page = "Text.\n\n```sh\nprintf 'new\\nmore\\nend'\n```\n\n<!-- first 2 lines -->\n```text\nold\n```\n\nMore.\n"
    assert runner.run_tutorial(page, tmp_path) == page.replace("old", "new\nmore\n…")


def test_the_tutorial_shows_an_output_for_every_command():
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert len(list(runner.STEP.finditer(page))) == page.count("```sh\n")
    assert "```text\n```" not in page
    verbs = {command.split()[1] for command in commands(ROOT / "docs" / "tutorial.md")}
    assert verbs >= {"check-data", "train", "evaluate", "suggest", "label", "calibrate", "predict", "export"}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="export needs it")
def test_the_tutorial_runs(tmp_path):
    """Every command ends with exit code 0, or 1 where files are left out."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    folder = Path(tmp_path / "tutorial")
    folder.mkdir()
    runner.run_tutorial(page, folder)
    assert (folder / "photos.onnx").exists()
    assert (folder / "photos-model" / "README.md").exists()
