"""What sits on a backbone: the linear head, the neural-process head with its banks, and the model that joins them."""

from npmatch.heads.bank import Bank
from npmatch.heads.linear import LinearHead
from npmatch.heads.model import Model, WeakNorm
from npmatch.heads.neural_process import NeuralProcessHead

__all__ = ["Bank", "LinearHead", "Model", "NeuralProcessHead", "WeakNorm"]
