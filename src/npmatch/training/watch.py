"""Looks at the log as an experienced colleague would, and says what to change when training goes wrong."""

from __future__ import annotations

from collections.abc import Mapping


class Watch:
    """Warns once per trouble: nothing is ever trusted, or one class swallows the pseudo-labels."""

    def __init__(self, num_classes: int, patience: int = 5) -> None:
        """`patience` is the number of logged lines in a row that make a trouble."""
        self.num_classes = num_classes
        self.patience = patience
        self.lines: dict[str, int] = {}

    def look(self, means: Mapping[str, float]) -> list[str]:
        """Warnings due after this line of the log."""
        if "trusted" not in means:
            return []
        swallowed = max(0.5, 3 / self.num_classes)
        troubles = {
            "no pseudo-label is trusted, so unlabelled images teach nothing; raise algorithm.max_entropy, lower "
            "algorithm.confidence, or check that the labelled images are learnt (loss_labeled)": means["trusted"]
            < 1e-4,
            f"one class holds over {swallowed:.0%} of the trusted pseudo-labels; set algorithm.alignment=true, lower "
            "training.learning_rate, or give more labels (unless your classes really are that unequal)": means.get(
                "largest_class_share", 0.0
            )
            > swallowed
            and means["trusted"] > 0.05
            and self.num_classes > 2,
        }
        due = []
        for text, present in troubles.items():
            self.lines[text] = self.lines.get(text, 0) + 1 if present else 0
            if self.lines[text] == self.patience:
                due.append(text)
        return due
