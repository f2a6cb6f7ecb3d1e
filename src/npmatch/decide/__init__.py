"""From predictions to decisions, by labels that were held out of training: temperature, abstention, prediction sets;
and, by the training images themselves, a score for images unlike anything seen.

    calibration = Calibration.load(run)
    decider = Decider(calibration, class_names, Wishes(abstain=0.05, ood=True))
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
