"""One rank of two in tests of whole runs: trains, stops, resumes, evaluates, predicts."""

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

import npmatch
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.predict.files import predict_files
from npmatch.training.loop import Trainer
from tiny import stop_tiny, train_tiny

WORLD = 2
BATCHES = {"training__eval_batch": 100}  # so that the ranks share the 360 test images


def do_everything(rank: int, folder: Path) -> None:
    """Each run has its own folder; other results go into results-RANK.json."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    results = {}
    run = train_tiny(folder / "straight", **BATCHES)
    results["scores"] = run.scores
    stop_tiny(folder / "stopped", 12, **BATCHES)
    stop_tiny(folder / "stopped-for-one", 12, **BATCHES)
    train_tiny(folder / "stopped", resume=True, **BATCHES)
    train_tiny(folder / "local-norm", training__sync_norm=False)
    results["signal"] = stopped_by_signal(folder / "signal", rank)
    results["uneven"] = refused(folder / "uneven", training__batch=9)
    results["again"] = refused(folder / "straight")
    results["evaluation"] = npmatch.evaluate_run(run.folder).prediction.probs.tolist()
    pictures = folder / "pictures"
    results["predicted"] = predict_files(npmatch.load(run.folder), [pictures], folder / "two.csv", batch_size=3)
    (folder / f"results-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    os._exit(0)


def stopped_by_signal(folder: Path, rank: int) -> list[int]:
    """Only the last rank gets the signal, after its third step; returns this rank's last step and its exit code."""
    take_step = Trainer.take_step

    def signalled(self, raw):
        take_step(self, raw)
        if self.step == 3 and rank == WORLD - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer.take_step = signalled
    try:
        train_tiny(folder)
    except InterruptedRunError as stopped:
        return [stopped.step, stopped.exit_code]
    finally:
        Trainer.take_step = take_step
    return []


def refused(folder: Path, **changes) -> list[str]:
    """Type and message of the error with which a run is refused."""
    try:
        train_tiny(folder, **changes)
    except NPMatchError as error:
        return [type(error).__name__, str(error)]
    return []
