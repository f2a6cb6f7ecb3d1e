"""One rank of two in tests of errors, started as torchrun would start it: commands that fail on one rank."""

import contextlib
import errno
import io
import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from npmatch.cli import main
from npmatch.data.images import FileImages
from npmatch.distributed import ranks
from npmatch.errors import NPMatchError
from npmatch.runs import fit as start
from npmatch.training.checkpoint import Checkpoints
from npmatch.training.loop import Trainer
from tiny import TINY

WORLD = 2
WORDS = ["--device", "cpu", "--quiet", *(f"{key}={value}" for key, value in TINY.items())]


def run_cases(rank: int, folder: Path, port: int, group: str) -> None:
    """Writes the exit code and standard error of each case of a group to ended-GROUP-RANK.json."""
    torch.set_num_threads(1)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    ended = {}

    def case(name: str, verb: str, *words: str, only: int | None = None, patched=None) -> None:
        """Runs a command, with the patch `patched` on rank `only`."""
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), patched if only == rank else contextlib.nullcontext():
            ended[name] = [main([verb, *words]), printed.getvalue()]
        (folder / f"ended-{group}-{rank}.json").write_text(json.dumps(ended))

    digits = ["digits-40", *WORDS]
    pictures = ["--data", str(folder / "pictures"), *WORDS, "backbone.name=cnn", "data.image_size=8"]
    streamed = ["data.resident=never", "data.workers=0", "data.check=false"]
    pages = [str(folder / "pictures" / "test" / "dark"), *[str(folder / "others" / "test" / "dark")] * rank]
    run = str(folder / "run")

    if group == "patience":
        ended[group] = waiting(seconds=5, timeout=3)
        (folder / f"ended-{group}-{rank}.json").write_text(json.dumps(ended))
    elif group == "unreadable":
        case(group, "train", *pictures, *streamed, "--out", str(folder / "a"), only=1, patched=unreadable(at=5))
    elif group == "full-disk":
        case(group, "train", *digits, "--out", str(folder / "b"), only=0, patched=full_disk())
    elif group == "dead":
        case(group, "train", *digits, "--out", str(folder / "c"), only=1, patched=death(at=3))
    else:
        case("uneven", "train", *digits, "training.batch=9", "--out", str(folder / "d"))
        case("usage", "train", "--nonsense")
        case("another verb", "compare", "digits-40")
        case("other data", "train", *pictures, "--out", str(folder / "e"), only=1, patched=data_of(folder / "others"))
        case("other version", "train", *digits, "--out", str(folder / "f"), only=1, patched=another_version())
        case("run", "train", *digits, "--out", run)
        case("words", "train", *digits[:1], "--device", "cpu", "--minutes", "-1", "--out", str(folder / "g"))
        case("no run", "evaluate", str(folder / "none"))
        case("no format", "predict", run, str(folder / "pictures"), "-o", str(folder / "out.txt"))
        case("no folder", "predict", run, str(folder / "pictures"), "-o", str(folder / "a-file" / "out.csv"))
        case("other files", "predict", run, *pages, "-o", str(folder / "out.csv"))
        case("skipped", "predict", run, str(folder / "pictures"), "-o", str(folder / "out.csv"))
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
        case("restarted", "train", *digits, "--out", run)
        case("restarted elsewhere", "train", *digits, "--out", str(folder / "strangers"))
    os._exit(0)


def waiting(seconds: float, timeout: float) -> str:
    """The result of a task of rank zero that takes longer than the timeout of collectives."""
    impatient = partial(dist.init_process_group, timeout=timedelta(seconds=timeout))
    with patch.object(dist, "init_process_group", impatient), ranks.process_group(torch.device("cpu")):
        return ranks.on_rank_zero(lambda: time.sleep(seconds) or "made")


def unreadable(at: int):
    """After `at` reads, no image can be read."""
    take, calls = FileImages.take, []

    def taken(self, index):
        calls.append(index)
        if len(calls) > at:
            raise NPMatchError("x.png: not a readable image")
        return take(self, index)

    return patch.object(FileImages, "take", taken)


def data_of(root: Path):
    """A machine with other images in the folder of the data."""
    load = start.load_configured
    return patch.object(start, "load_configured", lambda config, listing: load(replace(config, root=str(root))))


def full_disk():
    def save(self, step, parts):
        raise OSError(errno.ENOSPC, "No space left on device", "the disk")

    return patch.object(Checkpoints, "save", save)


def another_version():
    return patch.object(ranks, "__version__", "0.0")


def death(at: int):
    take_step = Trainer.take_step

    def dying(self, raw):
        if self.step == at:
            os._exit(0)
        take_step(self, raw)

    return patch.object(Trainer, "take_step", dying)
