"""Stands for `npmatch train` in the tests of the training process: writes a run's files, and stops on SIGTERM."""

import json
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    words = sys.argv[1:]
    run = Path(words[words.index("--out") + 1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("npmatch: stopped after step 1; its state is saved"))
    if "fail" in words:
        sys.exit("npmatch: labels.csv: this is wrong")
    run.mkdir(parents=True, exist_ok=True)
    if "--data" in words:
        data = Path(words[words.index("--data") + 1]).resolve()
        (run / "config.yaml").write_text(f"data:\n  root: {data}\ntraining:\n  iterations: 10\n")
    line = {"kind": "train", "step": 5, "seconds": 2.0, "trusted": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    while "wait" in words:
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    main()
