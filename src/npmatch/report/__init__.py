"""Reports of one run or of many: a self-contained HTML page, and tables for the terminal."""

from npmatch.report.gallery import gallery_indices
from npmatch.report.page import write_report
from npmatch.report.record import Comparison, Method, Outcome, RunRecord
from npmatch.report.tables import method_notes, methods_table, table_text

__all__ = [
    "Comparison",
    "Method",
    "Outcome",
    "RunRecord",
    "gallery_indices",
    "method_notes",
    "methods_table",
    "table_text",
    "write_report",
]
