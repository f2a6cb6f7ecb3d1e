"""Checks of a user's images before training: broken files, duplicates, leaks, and classes with few labels."""

from npmatch.data.check.check import check_data
from npmatch.data.sources.registry import list_data

__all__ = ["check_data", "list_data"]
