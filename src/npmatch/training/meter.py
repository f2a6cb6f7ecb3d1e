"""Running means of a step's logs, kept on the device and read back only when a line is logged."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.types import Step


class Meter:
    """Sums of what steps log, and of how good their pseudo-labels are; part of a checkpoint, like any state."""

    def __init__(self, num_classes: int, truth: Tensor) -> None:
        """`truth` N holds the unlabelled images' labels, −1 = unknown: read here, for diagnostics, and nowhere else."""
        self.truth = truth
        self.num_classes = num_classes
        self.totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, step: Step, index: Tensor, extra: dict[str, Tensor]) -> None:
        """Accumulates one step without asking the device for anything."""
        one = torch.ones_like(step.loss.detach())
        values = {f"mean/{name}": v for name, v in {"loss": step.loss.detach(), **step.logs, **extra}.items()}
        if step.pseudo is not None and step.keep is not None:
            truth, keep = self.truth[index], step.keep
            judged = keep & (truth >= 0)
            values |= {
                "seen": one * keep.numel(),
                "kept": keep.sum(),
                "judged": judged.sum(),
                "right": (judged & (step.pseudo == truth)).sum(),
                "kept_per_class": one.new_zeros(self.num_classes).scatter_add(0, step.pseudo, keep.to(one.dtype)),
            }
        for name, value in {"steps": one, **values}.items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value.clone()

    def read(self) -> dict[str, float]:
        """Means over the interval as plain numbers, and a new interval begins; this waits for the device."""
        totals, self.totals = self.totals, {}
        steps = float(totals["steps"])
        means = {name[5:]: float(t) / steps for name, t in totals.items() if name.startswith("mean/")}
        if "seen" in totals:
            kept, judged = float(totals["kept"]), float(totals["judged"])
            means["trusted"] = kept / float(totals["seen"])
            if judged:
                means["pseudo_accuracy"] = float(totals["right"]) / judged
            if kept:
                means["largest_class_share"] = float(totals["kept_per_class"].max()) / kept
        return means

    def state_dict(self) -> dict[str, Tensor]:
        """The interval so far."""
        return self.totals

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Goes on in the middle of an interval."""
        self.totals = {name: value.to(self.truth.device) for name, value in state.items()}
