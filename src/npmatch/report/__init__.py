"""What happened in a run, or in many, for people: an HTML page that needs nothing else, tables for the terminal."""

from npmatch.report.gallery import gallery_indices
from npmatch.report.many import write_comparison
from npmatch.report.many_tables import method_notes, methods_table, table_text
from npmatch.report.methods import Comparison, Method, Outcome
from npmatch.report.page import write_report
from npmatch.report.record import RunRecord
from npmatch.report.tables import comparison_table

__all__ = [
    "Comparison",
    "Method",
    "Outcome",
    "RunRecord",
    "comparison_table",
    "gallery_indices",
    "method_notes",
    "methods_table",
    "table_text",
    "write_comparison",
    "write_report",
]
