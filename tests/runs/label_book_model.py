"""A model of the label book under faults: kills, a full disk, a damaged file, and writers in a random order.

Two servers and `npmatch label` run the real code in a thread each. They pause before every operation on a file, and a
seed decides who goes on and what fails. What the book must hold is derived from the order in which `labels.csv` was
replaced, not from what the code believes.
"""

import csv
import errno
import io
import random
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from npmatch import files
from npmatch.data import Split
from npmatch.data.images import ArrayImages
from npmatch.data.labels import LabelRow
from npmatch.errors import NPMatchError
from npmatch.labelling.files import take_labels
from npmatch.runs import label_book, label_file
from npmatch.runs.label_file import LabelFile
from npmatch.runs.open import RunData
from npmatch.types import Dataset, ImageSet
from npmatch.web.labelling import Labelling

CLASSES, NAMES = ("cat", "dog", "owl"), tuple(f"{i}.png" for i in range(5))
OPERATIONS = 6  # of every writer
KILL, FILL, FREE, DAMAGE = 0.02, 0.02, 0.1, 0.01  # probabilities, for every turn: the disk fills up, and is freed again


class Killed(BaseException):
    """The writer's process was killed: nothing that it would do afterwards happens."""


def run_of(folder):
    """A run of five unlabelled images."""
    train = ImageSet(ArrayImages(torch.zeros(5, 1, 4, 4, dtype=torch.uint8)), torch.full((5,), -1), list(NAMES))
    nothing = torch.tensor([], dtype=torch.int64)
    config = SimpleNamespace(data=SimpleNamespace(root=None))
    return RunData(folder, config, Dataset("five", CLASSES, train), Split(nothing, torch.arange(5), nothing, 0, ""))


class Writer(threading.Thread):
    """A process that changes labels, one operation after another; if it is killed, it is started again."""

    def __init__(self, schedule, seed):
        super().__init__(daemon=True)
        self.schedule, self.random = schedule, random.Random(seed)
        self.turn = threading.Semaphore(0)
        self.is_killed = self.is_done = self.is_writing = False
        self.problem = None
        self.num_acknowledged = 0

    def run(self):
        self.turn.acquire()
        left = OPERATIONS
        while left and self.problem is None:
            try:
                self.is_killed = False
                self.decide = lambda state: {}
                self.start_process()
                while left:
                    left -= 1
                    # What the operation must change (name → label or None), given the labels when it takes the lock.
                    self.changes, self.has_written, self.has_committed = {}, False, False
                    self.operate()
            except Killed:
                continue
            except BaseException as error:
                self.problem = error
        self.is_done = True
        self.schedule.is_back.release()

    def pause(self):
        """Waits for the next turn; called before every operation on a file."""
        if not self.is_killed:
            self.schedule.is_back.release()
            self.turn.acquire()
        if self.is_killed:
            raise Killed

    def acknowledge(self):
        """The operation has succeeded: its changes are in the file, or were there when it took the lock."""
        before = self.schedule.at_lock
        assert self.has_committed or all(before.get(name) == label for name, label in self.changes.items())
        assert not self.has_committed or self.schedule.in_backup == self.schedule.state, "a damaged file would lose it"
        self.num_acknowledged += 1


class Command(Writer):
    """`npmatch label` with one to three rows."""

    def start_process(self):
        pass

    def operate(self):
        rows = {name: self.random.choice(CLASSES) for name in self.random.sample(NAMES, self.random.randint(1, 3))}
        self.decide = lambda state: rows
        try:
            take_labels(run_of(self.schedule.folder), [LabelRow(name, name, label) for name, label in rows.items()])
        except NPMatchError:
            return
        self.acknowledge()


class Server(Writer):
    """A page: labels, removals, skips and undo, by somebody who may not have seen the latest label."""

    def start_process(self):
        self.undoable, self.labelling = [], None
        while self.labelling is None:
            try:
                self.labelling = Labelling(run_of(self.schedule.folder))
            except NPMatchError:  # the file is damaged, and the disk is full
                self.pause()

    def operate(self):
        self.random.choice([self.mark, self.mark, self.mark, self.skip, self.undo])()

    def mark(self):
        position, label = self.random.randrange(5), self.random.choice([0, 1, 2, None])
        seen = self.random.choice([-1, -1, None, 0, 1, 2])  # −1: not compared
        name, new, old = NAMES[position], self.class_name(label), None

        def decide(state):
            nonlocal old
            old = state.get(name)
            return {name: new} if seen == -1 or old in (new, self.class_name(seen)) else {}

        self.decide = decide
        try:
            answer = self.labelling.mark(position, label, False, "me", seen)
        except NPMatchError:
            return
        assert answer["taken"] == bool(self.changes)
        self.acknowledge()
        if self.has_committed:
            self.undoable.append((name, old, new))

    def skip(self):
        self.decide = lambda state: {}
        try:
            self.labelling.mark(self.random.randrange(5), None, True, "somebody else")
        except NPMatchError:
            return
        finally:
            self.labelling.annotations.skipped.clear()

    def undo(self):
        last = 0

        def decide(state):
            nonlocal last
            last = max((i for i, (name, _, new) in enumerate(self.undoable) if state.get(name) == new), default=-1)
            return {} if last < 0 else {self.undoable[last][0]: self.undoable[last][1]}

        self.decide = decide
        try:
            self.labelling.undo("me")
        except NPMatchError:
            if self.has_written:  # changes that others have overwritten are forgotten, this one can be undone later
                self.undoable = self.undoable[: last + 1]
            return
        self.acknowledge()
        self.undoable = self.undoable[: max(last, 0)]

    def class_name(self, label):
        return None if label is None else CLASSES[label]


class Schedule:
    """One random interleaving, and the labels that the book must hold."""

    def __init__(self, folder, seed):
        self.folder, self.random = folder, random.Random(seed)
        self.is_back = threading.Semaphore(0)
        self.writers = [kind(self, f"{seed}, {i}") for i, kind in enumerate((Server, Server, Command))]
        self.state = self.at_lock = self.in_backup = {}  # the backup is ahead if a kill came between it and the file
        self.is_damaged = self.is_full = False
        self.faults = {"kills": 0, "full disks": 0, "damaged files": 0}

    def run(self):
        for writer in self.writers:
            writer.start()
        while waiting := [writer for writer in self.writers if not writer.is_done]:
            writer = self.random.choice(waiting)
            self.inject_faults(writer)
            writer.turn.release()
            self.is_back.acquire()
            if writer.problem is not None:
                raise writer.problem
            assert self.is_damaged or self.on_disk() == self.state
        expected = self.in_backup if self.is_damaged else self.state
        assert run_of(self.folder).book().labels == expected == self.on_disk()

    def inject_faults(self, writer):
        path = self.folder / "labels.csv"
        if self.random.random() < KILL:
            writer.is_killed = True
            self.faults["kills"] += 1
        if self.random.random() < (FREE if self.is_full else FILL):
            self.is_full = not self.is_full
            self.faults["full disks"] += self.is_full
        if self.random.random() < DAMAGE and path.exists():
            path.write_bytes(self.random.choice([b"", b"\0" * 20, b"path,la"]))
            self.is_damaged = True
            self.faults["damaged files"] += 1

    def on_disk(self):
        path = self.folder / "labels.csv"
        text = path.read_text("utf-8") if path.exists() else "path,label\n"
        return {row["path"]: row["label"] for row in csv.DictReader(io.StringIO(text, newline=""))}

    def locked_by(self, writer):
        """Called when a writer has the lock, and when it has restored the file: it changes what it reads now."""
        self.at_lock = self.state
        writer.changes = writer.decide(self.state)

    def replaced_by(self, writer, name):
        """Called when a writer has replaced a file."""
        after = {n: label for n, label in {**self.at_lock, **writer.changes}.items() if label is not None}
        if writer.is_writing and name == "labels.backup.csv":
            self.in_backup = after
        elif writer.is_writing and name == "labels.csv":
            self.state, self.is_damaged, writer.has_committed = after, False, True
        elif name == "labels.csv":
            self.state, self.is_damaged = self.in_backup, False
            self.locked_by(writer)

    def patch(self, monkeypatch):
        """Makes every operation on a file a turn of the schedule."""
        this, os_replace = threading.current_thread, files.os.replace
        read, write, lock = LabelFile.content, LabelFile.write, files.one_writer

        def turn(writes=False):
            if isinstance(this(), Writer):
                this().pause()
                if writes and self.is_full:
                    raise OSError(errno.ENOSPC, "No space left on device")

        def replace(source, target):
            turn()
            os_replace(source, target)
            if isinstance(this(), Writer):
                self.replaced_by(this(), target.name)

        def open_new(path):
            turn(writes=True)
            return open(path, "xb")

        def content(file):
            turn()
            return read(file)

        def write_labels(file, labels):
            this().is_writing = this().has_written = True
            try:
                return write(file, labels)
            finally:
                this().is_writing = False

        @contextmanager
        def one_writer(path):
            turn()
            with lock(path):
                if isinstance(this(), Writer):
                    self.locked_by(this())
                yield

        monkeypatch.setattr(files, "os", replaced(files.os, replace=replace, fsync=lambda _: turn(writes=True)))
        monkeypatch.setattr(files, "time", replaced(files.time, sleep=lambda _: turn()))
        monkeypatch.setattr(files, "open_new", open_new)
        monkeypatch.setattr(label_file, "one_writer", one_writer)
        monkeypatch.setattr(label_file, "SETTLE_SECONDS", 0.0)
        monkeypatch.setattr(LabelFile, "content", content)
        monkeypatch.setattr(LabelFile, "write", write_labels)
        monkeypatch.setattr(label_book, "Display", lambda *_: SimpleNamespace(warn=lambda line: None))


def replaced(module, **functions):
    """A module with some of its functions replaced."""
    return SimpleNamespace(**{**vars(module), **functions})
