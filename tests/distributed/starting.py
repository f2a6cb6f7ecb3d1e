"""Processes for tests of several ranks: forked from one that has imported everything, which is then paid for once."""

import multiprocessing
from collections.abc import Callable


def run_together(target: Callable[..., None], arguments: list[tuple]) -> None:
    """Calls `target` in a process for each tuple of arguments, all at a time; each must end well."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank_worker", "run_worker", "ending_worker"])
    processes = [context.Process(target=target, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
