"""What happened in a run, for people: one HTML page that needs nothing else, and tables for the terminal."""

from npmatch.report.gallery import gallery_indices
from npmatch.report.page import write_report
from npmatch.report.record import RunRecord
from npmatch.report.tables import comparison_table

__all__ = ["RunRecord", "comparison_table", "gallery_indices", "write_report"]
