"""From predictions to decisions: which probabilities to trust, which predictions to withhold, which images are novel.

Labels that were held out of training give a temperature, a threshold for abstention and conformal prediction sets.
Features of the training images give a score for out-of-distribution (OOD) images; it needs no labels.

    calibration = Calibration.load(run_folder)
    decider = Decider(calibration, Wishes(abstain=0.05, ood=True))
    decisions = decider(prediction, features)
"""

from npmatch.decide.abstention import CONFIDENCE, TARGETS, Abstention, check_target, choose_threshold, fewest_labels
from npmatch.decide.calibration import Calibration
from npmatch.decide.decider import Decider, Decisions, Wishes
from npmatch.decide.novelty import Novelty
from npmatch.decide.temperature import fit_temperature, tempered

__all__ = [
    "CONFIDENCE",
    "TARGETS",
    "Abstention",
    "Calibration",
    "Decider",
    "Decisions",
    "Novelty",
    "Wishes",
    "check_target",
    "choose_threshold",
    "fewest_labels",
    "fit_temperature",
    "tempered",
]
