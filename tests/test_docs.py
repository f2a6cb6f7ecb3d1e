"""The documentation builds as a site without a warning, needs no network, and names all that is public."""

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import npmatch
from npmatch.algorithms import ALGORITHMS
from npmatch.config.tree import make_config

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_in_the_reference():
    shown = re.findall(r"^::: npmatch\.[\w.]*\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    assert sorted(shown) == sorted(set(npmatch.__all__) - {"__version__"})


def test_the_page_of_keys_is_that_of_the_code():
    module = runpy.run_path(str(ROOT / "scripts" / "write_keys.py"))
    written = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    assert written == module["page"](), "run scripts/write_keys.py"
    listed = set(re.findall(r"^\| `([\w.]+)` ", written, re.M))
    known = {key for name in ALGORITHMS for key in make_config({"algorithm.name": name}).flat()}
    assert listed == known - {"recipe", "preset", "seed", "algorithm.name"}
    assert not re.findall(r"^.*\|  \|$", written, re.M), "a key without a word about it"
    assert "| `backbone.pretrained` | false | `true`, `false` or `auto` |" in written


@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="mkdocs is not installed")
def test_the_site_builds_strictly_and_stands_alone(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {page.stem for page in pages} >= {page.stem for page in (ROOT / "docs").glob("*.md")}
    for page in pages:
        fetched = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]*)\"", page.read_text(encoding="utf-8")
        )
        assert not fetched, page.name
    reference = re.sub(r"<[^>]+>", "", (tmp_path / "api.html").read_text(encoding="utf-8"))
    assert "predict_uncertainty" in reference
    assert "U, int64: positions in the unlabelled set, no two alike" in reference  # a comment in the code: Batch.index
