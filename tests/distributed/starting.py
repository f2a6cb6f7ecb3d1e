"""Processes for tests of several ranks, forked from one that has imported everything, to import it only once."""

import multiprocessing
from collections.abc import Callable


def run_together(target: Callable[..., None], arguments: list[tuple]) -> None:
    """Calls `target` in one process for each tuple of arguments, all at once; each must exit with code 0."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank_worker", "run_worker", "failing_worker"])
    processes = [context.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
