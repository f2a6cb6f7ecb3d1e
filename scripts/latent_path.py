"""Measures what the latent path contributes: a trained NP-Match with parts of its head disabled.

    python scripts/latent_path.py RUN...

Prints the test error, NLL and UCE, averaged over the runs: as trained; with z replaced by its mean; with one sample;
with r zeroed; and with z zeroed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from npmatch import evaluate_run, load
from npmatch.heads import NeuralProcessHead
from npmatch.metrics import scores
from npmatch.predict.batches import predict_store


def mean_latent(head: NeuralProcessHead) -> None:
    """Sets z = μ by removing the noise."""
    head.noise.zero_()


def one_sample(head: NeuralProcessHead) -> None:
    """Uses one latent sample, T = 1."""
    head.noise = head.noise[:1]


def no_deterministic(head: NeuralProcessHead) -> None:
    """Sets r = 0 by zeroing its weights in the decoder's first layer."""
    head.decoder_in.weight.data[:, -head.width :] = 0


def no_latent(head: NeuralProcessHead) -> None:
    """Sets z = 0 by zeroing its weights in the decoder's first layer."""
    head.decoder_in.weight.data[:, -2 * head.width : -head.width] = 0


CHANGES: dict[str, Callable[[NeuralProcessHead], None]] = {
    "as trained": lambda head: None,
    "z = its mean": mean_latent,
    "T = 1": one_sample,
    "r = 0": no_deterministic,
    "z = 0": no_latent,
}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table with one row for each change, averaged over the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="Folder of a finished NP-Match run.")
    folders = parser.parse_args(arguments).runs
    runs = [(folder, evaluate_run(folder, device="cpu").held_out) for folder in folders]
    table = Table("head", "error", "NLL", "UCE")
    for name, change in CHANGES.items():
        results = []
        for folder, held_out in runs:
            classifier = load(folder, "cpu")
            assert isinstance(classifier.model.head, NeuralProcessHead), f"{folder} is not an NP-Match run"
            change(classifier.model.head)
            prediction = predict_store(classifier.model, held_out.images, classifier.spec, classifier.device, 1024)
            results.append(scores(prediction, held_out.labels))
        error, nll, uce = (sum(getattr(r, key) for r in results) / len(results) for key in ("error", "nll", "uce"))
        table.add_row(name, f"{error:.2f} %", f"{nll:.3f}", f"{uce:.2f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
