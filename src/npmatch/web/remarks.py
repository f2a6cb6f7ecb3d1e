"""What a run's calibration adds to a prediction, in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.types import NPMatchError

ABSTAIN = 0.05  # the error below which answers that are not withheld stay


def make_decider(calibration: Calibration | None) -> Decider:
    """Decides all that a run's held-out labels and training features allow, and nothing more."""
    wishes = Wishes(ood=calibration is not None and calibration.novelty is not None)
    try:
        return Decider(calibration, replace(wishes, abstain=ABSTAIN))
    except NPMatchError:  # too few labels were held out
        return Decider(calibration, wishes)


def remarks(decisions: Decisions, decider: Decider) -> list[dict[str, Any]]:
    """Sentences on one image, the serious ones first."""
    lines = []
    if decisions.ood is not None and decisions.ood_score is not None:
        is_new, score = bool(decisions.ood[0]), float(decisions.ood_score[0])
        text = "Unlike the images the model was trained on" if is_new else "It resembles the training images"
        end = ": do not rely on this answer." if is_new else "."
        lines.append({"text": f"{text} (novelty {score:.2f}, limit {decider.limit:.2f}){end}", "serious": is_new})
    if decisions.withheld is not None:
        kept = f"To keep the error below {ABSTAIN:.0%}, this answer would "
        withheld = bool(decisions.withheld[0])
        text = kept + ("be withheld: a person should decide." if withheld else "not be withheld.")
        lines.append({"text": text, "serious": withheld})
    if decisions.temperature is not None:
        text = f"Probabilities are calibrated on {decider.calibration.n} held-out labels."
        lines.append({"text": text, "serious": False})
    return sorted(lines, key=lambda line: not line["serious"])
