"""Every script that the documentation names exists and starts."""

import re
import runpy
import subprocess
import sys

import pytest

from doc_commands import PAGES, ROOT

SCRIPTS = ROOT / "scripts"


def names() -> list[str]:
    """The scripts named on a page, and those that can be run."""
    pages = [page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "CONTRIBUTING.md")]
    named = {name for page in pages for name in re.findall(r"\bscripts/(\w+\.\w+)", page)}
    runnable = {path.name for path in SCRIPTS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    return sorted(named | runnable)


@pytest.mark.parametrize("name", names())
def test_every_script_of_the_docs_starts(name, monkeypatch, capsys):
    script = SCRIPTS / name
    assert script.is_file(), "a page names it"
    if script.suffix == ".sh":
        subprocess.run(["bash", "-n", script], check=True)
        return
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {name}" in capsys.readouterr().out


def test_a_benchmark_becomes_a_folder_with_its_classes(tmp_path, monkeypatch):
    out, truth = tmp_path / "digits", tmp_path / "truth.csv"
    words = ["digits", str(out), "--labels", "20", "--unlabeled", "30", "--test", "40", "--truth", str(truth)]
    monkeypatch.setattr(sys, "argv", ["make_benchmark_folder.py", *words])
    runpy.run_path(str(SCRIPTS / "make_benchmark_folder.py"), run_name="__main__")
    found = {part: list((out / part).rglob("*.png")) for part in ("labeled", "unlabeled", "test")}
    assert {part: len(files) for part, files in found.items()} == {"labeled": 20, "unlabeled": 30, "test": 40}
    assert sorted(folder.name for folder in (out / "labeled").iterdir()) == [str(k) for k in range(10)]
    assert not {file.name for file in found["labeled"]} & {file.name for file in found["unlabeled"]}
    assert len(truth.read_text().splitlines()) == 31
