"""What several tests share: a small trained run, a folder of photos; and the order in which workers take the files."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import npmatch
from few_photos import save_photos
from npmatch.distributed.collective import traffic
from tiny import train_tiny

# Folders with the longest files: taken first, so that no worker starts a long one when the others are done.
LONGEST = ("distributed", "compare", "benchmarks", "runs", "web", "config", "training")
# Folders with tests that train runs but do not look at the figures of their reports.
UNDRAWN = ("cli", "config", "data", "labelling", "runs", "training")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """No workers for a single file, which would wait for them to import torch; otherwise as many as xdist says."""
    files = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(files) == 1 and files.pop().endswith(".py") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors: more threads would only wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def undrawn_figures(request, monkeypatch):
    """Spares matplotlib's drawing, half of the time of a tiny run, where a report's figures are not looked at.

    The figures are still made of the run's data. Runs that tests share draw them, and so do the tests of the report.
    """
    if request.path.parent.name in UNDRAWN:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **__: file.write("<svg></svg>"))


@pytest.fixture
def one_rank():
    """A process group of one rank, whose traffic is counted from zero."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    traffic.clear()
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> npmatch.Run:
    """A finished NP-Match run on digits, shared by the tests that only read it."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of few photos of two classes, to train on with few_photos.WORDS."""
    return save_photos(tmp_path / "photos")


@pytest.fixture
def forbid(monkeypatch) -> Callable[[Path], None]:
    """A function after which a folder cannot be read; file modes would not hold for root."""

    def forbid(folder: Path) -> None:
        for name in ("scandir", "listdir"):
            read = getattr(os, name)

            def refusing(path=".", read=read):
                if os.fspath(path) == os.fspath(folder):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
                return read(path)

            monkeypatch.setattr(os, name, refusing)

    return forbid
