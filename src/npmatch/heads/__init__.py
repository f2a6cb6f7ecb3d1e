"""Heads on a backbone: linear, one-vs-all, neural processes, MC dropout; and the model that joins them."""

from npmatch.heads.attentive_process import AttentiveProcessHead
from npmatch.heads.averaged_teacher import AveragedTeacher
from npmatch.heads.bank import Bank, TrustedPoints, condensed_banks
from npmatch.heads.context import ContextHead, other_images
from npmatch.heads.kernel_process import KernelProcessHead
from npmatch.heads.known import KnownImages
from npmatch.heads.linear import LinearHead
from npmatch.heads.mc_dropout import MCDropout, MCDropoutModel
from npmatch.heads.memory import LabeledMemory, Memory
from npmatch.heads.model import Model, WeakNorm, backbones_in
from npmatch.heads.neural_process import NeuralProcessHead
from npmatch.heads.one_vs_all import OneVsAllHead
from npmatch.heads.statistics import average_statistics, frozen_statistics
from npmatch.heads.sync_norm import SyncNorm, synchronise_norms

__all__ = [
    "AttentiveProcessHead",
    "AveragedTeacher",
    "Bank",
    "ContextHead",
    "KernelProcessHead",
    "KnownImages",
    "LabeledMemory",
    "LinearHead",
    "MCDropout",
    "MCDropoutModel",
    "Memory",
    "Model",
    "NeuralProcessHead",
    "OneVsAllHead",
    "SyncNorm",
    "TrustedPoints",
    "WeakNorm",
    "average_statistics",
    "backbones_in",
    "condensed_banks",
    "frozen_statistics",
    "other_images",
    "synchronise_norms",
]
