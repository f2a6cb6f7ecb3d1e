"""Weak and strong views: batched on the device, every image with its own draws."""

from npmatch.augment.operations import OPERATIONS, RANGES, apply_operation
from npmatch.augment.pixels import normalize
from npmatch.augment.policies import AugmentConfig, Policy, make_policy
from npmatch.augment.views import View, slice_draws

__all__ = [
    "OPERATIONS",
    "RANGES",
    "AugmentConfig",
    "Policy",
    "View",
    "apply_operation",
    "make_policy",
    "normalize",
    "slice_draws",
]
