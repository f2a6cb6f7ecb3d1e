"""Equal training time for every method: how many steps of a configuration fit into a number of minutes.

A comparison runs `python -m npmatch.compare.pace REQUEST` in a process of its own, on the machine that will train;
REQUEST is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config
from npmatch.data import load_configured
from npmatch.data.long_tail import draw_split, thin_unlabeled
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.runs.memory import build_to_fit
from npmatch.training import Display
from npmatch.training.pace import steps_within


def iterations_for(config: Config, minutes: float, device: str | None = None) -> int:
    """The number of training steps of `config` that take `minutes` on the device; at least one."""
    chosen = choose_device(device)
    dataset = load_configured(config.data)
    split = thin_unlabeled(config.data, dataset, draw_split(config.data, dataset, config.seed))
    _, trainer, _ = build_to_fit(config, dataset, split, chosen, Display("", 0, quiet=True))
    return steps_within(minutes, trainer, chosen)


def main(text: str) -> int:
    """Measures for a request {out, recipe, algorithm, seed, overrides, minutes, device}; writes {iterations} to out."""
    request = json.loads(text)
    out, minutes, device = Path(request.pop("out")), request.pop("minutes"), request.pop("device")
    try:
        iterations = iterations_for(resolve_config(**request, device=device), minutes, device)
    except NPMatchError as error:
        sys.stderr.write(f"npmatch: {error}\n")
        return 2
    write_atomically(out, json.dumps({"iterations": iterations}).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
