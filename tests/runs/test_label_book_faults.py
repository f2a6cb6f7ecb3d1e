"""Whatever happens to the writers and to the disk, every label that was acknowledged is in the label book."""

import os
import random
import resource
import signal
import time
from collections import Counter

import pytest
from label_book_model import Schedule

from npmatch.runs.label_book import LabelBook, LabelsNotSavedError


def run_schedules(tmp_path, monkeypatch, seeds):
    """Runs one schedule for each seed; returns the number of faults and of operations that were acknowledged."""
    counts = Counter()
    for seed in seeds:
        schedule = Schedule(tmp_path / str(seed), seed)
        schedule.folder.mkdir()
        with monkeypatch.context() as patch:
            schedule.patch(patch)
            try:
                schedule.run()
            except BaseException as error:
                error.add_note(f"in the schedule of seed {seed}")
                raise
        counts.update(schedule.faults)
        counts["acknowledged"] += sum(writer.num_acknowledged for writer in schedule.writers)
    return counts


def test_no_schedule_of_writers_and_faults_loses_a_label(tmp_path, monkeypatch):
    counts = run_schedules(tmp_path, monkeypatch, range(60))
    assert min(counts.values()) >= 20, counts


@pytest.mark.slow
def test_no_schedule_of_a_thousand_loses_a_label(tmp_path, monkeypatch):
    counts = run_schedules(tmp_path, monkeypatch, range(60, 1060))
    assert min(counts.values()) >= 300, counts


def start_writer(folder, writer, limit):
    """Starts a process that gives labels until it is killed; returns its number and a pipe of acknowledged names."""
    acknowledged, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, acknowledged
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # larger files cannot be written, as on a full disk
        book = LabelBook(folder, ["cat"])
        for number in range(10_000):
            name = f"{writer}-{number}.png"
            try:
                book.set(name, "cat")
            except LabelsNotSavedError:
                os.write(write_end, b"full disk\n")
                continue
            os.write(write_end, f"{name}\n".encode())
    finally:
        os._exit(1)


def kill_writers(folder, seed):
    """Kills three processes that write one book, each after some labels; returns what they have acknowledged."""
    draw = random.Random(seed)
    limits = draw.sample([resource.RLIM_INFINITY, resource.RLIM_INFINITY, 100], 3)
    writers = [start_writer(folder, f"{seed}-{i}", limit) for i, limit in enumerate(limits)]
    lines = []
    for child, acknowledged in writers:
        with os.fdopen(acknowledged) as pipe:
            lines += [pipe.readline() for _ in range(draw.randint(1, 8))]
            time.sleep(draw.uniform(0, 0.002))  # in the middle of the next label
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            lines += pipe.readlines()
    return [line.strip() for line in lines]


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_that_are_killed_lose_no_label_that_they_acknowledged(tmp_path, rounds):
    counts = Counter()
    for seed in range(rounds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        lines = kill_writers(folder, seed)
        names = {line for line in lines if line != "full disk"}
        assert names <= LabelBook(folder, ["cat"]).labels.keys()
        counts.update({"labels": len(names), "full disks": len(lines) - len(names)})
    assert min(counts.values()) >= rounds, counts
