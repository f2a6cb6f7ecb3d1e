"""Errors on one rank end all ranks with one message; a torchrun that restarts resumes only its own run."""

import json

import pytest
import torch.distributed as dist
from failing_worker import WORLD, run_cases

from few_photos import save_photos
from starting import run_together
from tiny import stop_tiny

# Each group runs in new processes: after one of the last three errors a process cannot be used any more.
GROUPS = ("in-order", "patience", "unreadable", "full-disk", "dead")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Case → exit code and standard error of each rank."""
    folder = tmp_path_factory.mktemp("endings")
    same = {"size": (8, 8), "classes": ("dark", "light"), "labels": 5, "unlabeled": 30, "mode": "L"}
    save_photos(folder / "pictures", test=4, **same)
    save_photos(folder / "others", test=5, **same)
    (folder / "pictures" / "test" / "dark" / "broken.png").write_bytes(b"not a picture")
    (folder / "a-file").write_text("")
    stop_tiny(folder / "strangers", 12)
    # torchrun's store, which lives longer than its ranks.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = [{} for _ in range(WORLD)]
    for group in GROUPS:
        run_together(run_cases, [(rank, folder, store.port, group) for rank in range(WORLD)])
        for rank, file in enumerate(sorted(folder.glob(f"ended-{group}-*.json"))):
            results[rank] |= json.loads(file.read_text())
    return lambda case: [result.get(case) for result in results]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("uneven", "training.batch=9: 2 ranks take equal shares; use 8 or 10"),
        ("usage", "--nonsense"),
        ("another verb", "compare: torchrun is for train, evaluate, predict; leave it out"),
        ("full-disk", "the disk: cannot be written after step 7"),
        ("other data", "rank 1 has other data than the first rank (test images: 8 → 9"),
        ("other version", "rank 1 runs npmatch 0.0 with torch"),
        ("words", "--minutes -1: give a time above 0"),
        ("no run", "none: no such run"),
        ("no format", "unknown output format '.txt'"),
        ("no folder", "out.csv: cannot be written"),
        ("other files", "rank 1 finds other files than rank 0"),
        ("restarted elsewhere", "strangers: holds a run already"),
    ],
)
def test_rank_zero_reports_it_in_one_line(ended, case, words):
    (code, printed), (other_code, other_printed) = ended(case)
    assert (code, other_code) == (2, 2)
    assert printed.startswith("npmatch: ")
    assert printed.count("\n") == 1
    assert words in printed
    assert other_printed == ""


def test_an_error_on_another_rank_is_reported_by_that_rank(ended):
    (code, printed), (other_code, other_printed) = ended("unreadable")
    assert (code, other_code) == (2, 2)
    assert printed == ""
    assert other_printed == "npmatch: rank 1: x.png: not a readable image\n"


def test_a_rank_that_dies_silently_ends_the_other_with_a_message(ended):
    (code, printed), other = ended("dead")
    assert other is None
    assert code == 2
    assert printed.startswith("npmatch: lost contact with another rank")
    assert printed.count("\n") == 1


def test_a_restart_resumes_the_run_of_the_same_torchrun(ended):
    assert [code for code, _ in ended("run")] == [0, 0]
    assert [code for code, _ in ended("restarted")] == [0, 0]


def test_skipped_files_are_an_exit_code_of_rank_zero_only(ended):
    """torchrun kills all ranks once one has failed, even if the table is not complete yet."""
    assert [code for code, _ in ended("skipped")] == [1, 0]


def test_the_other_ranks_wait_for_rank_zero_as_long_as_its_task_takes(ended):
    """Rank zero alone reads all images before a run; for millions that takes longer than collectives wait."""
    assert ended("patience") == ["made", "made"]
