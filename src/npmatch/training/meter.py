"""Running means of a step's logs, kept on the device and read back only when a line is logged."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.types import FOREIGN, Step


class Meter:
    """Sums of what steps log, and of how good their pseudo-labels are; part of a checkpoint, like any state.

    pseudo_accuracy is the share of right ones among trusted pseudo-labels whose truth is a class. An image of no class
    can be given no right one, so it counts there as neither right nor wrong; where there are such images, the log says
    of them foreign_trusted (the share of those seen that was trusted) and trusted_is_foreign (their share of all
    trusted images).
    """

    def __init__(self, num_classes: int, truth: Tensor) -> None:
        """`truth` N: the unlabelled images' labels, −1 = unknown, −2 = no class; read for diagnostics, nowhere else."""
        self.truth = truth
        self.has_foreign = bool((truth == FOREIGN).any())
        self.num_classes = num_classes
        self.totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, step: Step, index: Tensor, extra: dict[str, Tensor], good: Tensor | None = None) -> None:
        """Accumulates one step without asking the device for anything; with `good`, 0-d bool, only where it holds."""
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
            if self.has_foreign:
                foreign = truth == FOREIGN
                values |= {"foreign": foreign.sum(), "foreign_kept": (foreign & keep).sum()}
        for name, value in {"steps": one, **values}.items():
            value = value if good is None else torch.where(good, value, torch.zeros_like(value))
            if name in self.totals:
                self.totals[name].add_(value)  # in place: a captured step keeps its storage
            else:
                self.totals[name] = value.clone()

    def read(self) -> dict[str, float]:
        """Means over the interval as plain numbers, and a new interval begins; this waits for the device."""
        totals = {name: total.to("cpu", copy=True) for name, total in self.totals.items()}
        for total in self.totals.values():
            total.zero_()
        steps = float(totals["steps"])
        if steps == 0:  # none of them was good
            return {}
        means = {name[5:]: float(t) / steps for name, t in totals.items() if name.startswith("mean/")}
        if "seen" in totals:
            kept, judged = float(totals["kept"]), float(totals["judged"])
            means["trusted"] = kept / float(totals["seen"])
            if judged:
                means["pseudo_accuracy"] = float(totals["right"]) / judged
            if kept:
                means["largest_class_share"] = float(totals["kept_per_class"].max()) / kept
            if float(totals.get("foreign", 0)):
                means["foreign_trusted"] = float(totals["foreign_kept"]) / float(totals["foreign"])
            if kept and "foreign" in totals:
                means["trusted_is_foreign"] = float(totals["foreign_kept"]) / kept
        return means

    def state_dict(self) -> dict[str, Tensor]:
        """The interval so far."""
        return self.totals

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Goes on in the middle of an interval."""
        self.totals = {name: value.to(self.truth.device, copy=True) for name, value in state.items()}
