"""When one rank cannot go on all end, at once and in one voice; and torchrun's restarts open no run of others."""

import json

import numpy as np
import pytest
import torch.distributed as dist
from ending_worker import WORLD, end_badly
from PIL import Image
from starting import run_together

from tiny import stop_tiny

# After one of the last three a process is good for no more.
GROUPS = ("in-order", "patience", "unreadable", "full-disk", "dead")


def draw_pictures(folder, tests):
    rng = np.random.default_rng(0)
    for part, count in (("labeled", 5), ("test", tests)):
        for name, level in (("dark", 50), ("light", 150)):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                noise = rng.integers(0, 80, (8, 8), dtype=np.uint8)
                Image.fromarray(noise + np.uint8(level)).save(folder / part / name / f"{i}.png")
    (folder / "unlabeled").mkdir()
    for i in range(30):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / "unlabeled" / f"{i}.png")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Of every case, what each rank ended with: an exit code and the lines it told."""
    folder = tmp_path_factory.mktemp("endings")
    draw_pictures(folder / "pictures", tests=4)
    draw_pictures(folder / "others", tests=5)  # only the test images are others
    (folder / "pictures" / "test" / "dark" / "broken.png").write_bytes(b"not a picture")
    (folder / "a-file").write_text("")
    stop_tiny(folder / "strangers", 12)
    # torchrun's store, which outlives its ranks.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = [{} for _ in range(WORLD)]
    for group in GROUPS:
        run_together(end_badly, [(rank, folder, store.port, group) for rank in range(WORLD)])
        for rank, file in enumerate(sorted(folder.glob(f"ended-{group}-*.json"))):
            told[rank] |= json.loads(file.read_text())
    return lambda case: [one.get(case) for one in told]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("uneven", "training.batch=9: 2 ranks take equal shares; use 8 or 10"),
        ("usage", "--nonsense"),
        ("another verb", "compare: torchrun is for train, evaluate, predict; leave it out"),
        ("full-disk", "the disk: cannot be written after step 7"),
        ("other data", "rank 1 has other data than the first rank (test images: 9 → 10"),
        ("other version", "rank 1 runs npmatch 0.0 with torch"),
        ("words", "--minutes -1: give a time above 0"),
        ("no run", "none: no such run"),
        ("no format", "unknown output format '.txt'"),
        ("no folder", "out.csv: cannot be written"),
        ("other files", "rank 1 finds other files than the first rank"),
        ("restarted elsewhere", "strangers: holds a run already"),
    ],
)
def test_the_first_rank_tells_it_in_one_line(ended, case, words):
    (code, told), (other_code, silence) = ended(case)
    assert (code, other_code) == (2, 2)
    assert told.startswith("npmatch: ")
    assert told.count("\n") == 1
    assert words in told
    assert silence == ""


def test_what_another_rank_alone_has_met_that_one_tells(ended):
    (code, silence), (other_code, told) = ended("unreadable")
    assert (code, other_code) == (2, 2)
    assert silence == ""
    assert told == "npmatch: rank 1: x.png: not a readable image\n"


def test_a_rank_that_dies_without_a_word_ends_the_other_with_one(ended):
    (code, told), other = ended("dead")
    assert other is None
    assert code == 2
    assert told.startswith("npmatch: lost contact with another rank")
    assert told.count("\n") == 1


def test_a_restart_goes_on_with_the_run_it_began(ended):
    assert [code for code, _ in ended("run")] == [0, 0]
    assert [code for code, _ in ended("restarted")] == [0, 0]


def test_only_the_rank_that_tells_ends_with_an_error_code(ended):
    """torchrun ends all ranks once one has ended badly, be the table whole or not."""
    assert [code for code, _ in ended("skipped")] == [1, 0]


def test_the_others_wait_for_the_first_as_long_as_its_task_takes(ended):
    """It alone looks at all images before a run; of millions that takes longer than collectives wait."""
    assert ended("patience") == ["made", "made"]
