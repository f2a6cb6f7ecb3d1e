"""A Ray cluster of two machines with one core each, both of them this machine; the second can be killed.

Run as a program, this file starts the cluster and obeys lines on standard input. It is a process of its own because Ray
reads its settings once, when it is imported.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# By default Ray believes for half a minute that a machine is alive which does not answer.
HEALTH_CHECKS = {"initial_delay_ms": 1000, "period_ms": 500, "timeout_ms": 1500, "failure_threshold": 3}
SIZE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}  # about the least memory that Ray takes


class Machines:
    """The cluster as a test sees it: its name on the command line, and the fate of its second machine."""

    def __init__(self) -> None:
        # It reports to nobody, and takes orders from those alone who know the token.
        ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        ray |= {f"RAY_health_check_{key}": str(value) for key, value in HEALTH_CHECKS.items()}
        self.environment = {**os.environ, **ray, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, __file__], text=True, env=self.environment, **pipes)
        self.name = f"ray:{self._answer()}"
        self.second_is_dead = False

    def _answer(self) -> object:
        return json.loads(self.process.stdout.readline() or '"the cluster did not start"')

    def _ask(self, what: str) -> object:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self._answer()

    def commands_on_second(self) -> str:
        """The command lines of the second machine's processes."""
        lines = []
        for pid in self._processes_of_second():
            with suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        return "\n".join(lines)

    def kill_second(self) -> None:
        """Kills all processes of the second machine at once, as a power failure would."""
        for pid in self._processes_of_second():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ask("remove")
        self.second_is_dead = True

    def replace_killed(self) -> None:
        """Adds a machine in place of one that was killed."""
        if self.second_is_dead:
            self._ask("add")
        self.second_is_dead = False

    def _processes_of_second(self) -> list[int]:
        return [pid for root in self._ask("list") for pid in descendants(root)]


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, the youngest first."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return [*found, pid]


@contextmanager
def two_machines() -> Iterator[Machines]:
    """A cluster that is shut down at the end."""
    machines = Machines()
    try:
        yield machines
    finally:
        machines.process.stdin.close()
        machines.process.wait(60)


def serve() -> None:
    """Starts the cluster, prints its address, and answers each line of standard input with a line of JSON."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**SIZE, "include_dashboard": False})
    try:
        second = cluster.add_node(**SIZE)
        print(json.dumps(cluster.address), flush=True)
        for line in sys.stdin:
            match line.strip():
                case "list":
                    answer = [started[0].process.pid for started in second.all_processes.values()]
                case "remove":
                    answer = cluster.remove_node(second, allow_graceful=False)
                case "add":
                    answer = bool(second := cluster.add_node(**SIZE))
            print(json.dumps(answer), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    serve()
