"""What is wrong with a folder of images, found before hours are spent on it."""

from npmatch.data.check.check import check_data
from npmatch.data.sources.registry import list_data

__all__ = ["check_data", "list_data"]
