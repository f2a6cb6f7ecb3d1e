"""The measured claims. Each bench compares in one run, so that its ratio holds whatever else the machine does."""

from benchmarks.result import BenchResult, Column

__all__ = ["BenchResult", "Column"]
