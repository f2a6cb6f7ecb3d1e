"""Run folders as finished runs leave them, made up: for tables and pages that would take days to train."""

import json
from pathlib import Path

import numpy as np
import torch

from npmatch.compare import Plan
from npmatch.compare.results import run_folder
from npmatch.metrics import scores
from npmatch.runs.folder import RunFolder
from npmatch.types import ImageSet, ImageStore, Prediction

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HARD = np.array([0.6, 0.3, 1.5, 2.6, 1.2, 2.1, 0.5, 0.7, 0.4, 0.5])  # how hard each class is, about 1


def make_run(folder: Path, seed: int, error: float, known: float = 1.0, class_names=CLASSES, steps=20_000, n=800):
    """A run that ends near `error` per cent; `known` says how far its uncertainty follows the classes."""
    rng = np.random.default_rng([seed, round(100 * error)])
    hard = np.resize(HARD, len(class_names))
    y = rng.integers(len(class_names), size=n)
    wrong = rng.random(n) < error / 100 * hard[y]
    logits = rng.normal(size=(n, len(class_names)))
    said = np.where(wrong, (y + 1 + rng.integers(len(class_names) - 1, size=n)) % len(class_names), y)
    doubt = known * (0.5 * hard[y] + 1.5 * wrong) + (1 - known) * rng.random(n)
    logits[np.arange(n), said] += 8 - 2.2 * doubt
    probs = torch.tensor(logits, dtype=torch.float32).softmax(-1)
    prediction, labels = Prediction(probs, torch.special.entr(probs).sum(-1)), torch.tensor(y)
    folder.mkdir(parents=True)
    RunFolder(folder).write_test_predictions(prediction, ImageSet(ImageStore(), labels), class_names)
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({"class_names": list(class_names)}))
    (folder / "split.json").write_text(
        json.dumps({"fingerprint": "f", "labeled": [seed], "validation": [], "include_labeled": True})
    )
    final = scores(prediction, labels).asdict()
    lines = []
    for step in range(steps // 20, steps + 1, steps // 20):
        left = (90 - final["error"]) * np.exp(-4 * step / steps) * rng.uniform(0.8, 1.2)
        trusted = {} if "supervised" in str(folder) else {"trusted": 0.9 * step / steps, "pseudo_accuracy": 0.95}
        lines.append({"kind": "train", "step": step, "loss": 1.0, "seconds": step / 20, **trusted})
        if step < steps:
            lines.append({"kind": "eval", "step": step, **final, "error": final["error"] + left})
    lines.append({"kind": "final", "step": steps, **final, "seconds": steps / 20 + 3 * seed})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_runs(plan: Plan, out: Path, errors: dict[str, float], **changes) -> None:
    """Every run of a plan, and the plan itself."""
    out.mkdir(parents=True, exist_ok=True)
    plan.save(out / "compare.json")
    for variant, seed in plan.runs():
        known = 0.2 if variant.algorithm == "mixmatch" else 1.0
        error = errors[plan.name(variant)] * (1 + 0.05 * seed)
        make_run(run_folder(out, variant, seed).path, seed, error, known, **changes)
