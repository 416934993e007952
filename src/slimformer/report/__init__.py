"""Reports: tables and plots on one self-contained HTML page."""

from slimformer.report.page import Facts, Figure, Page, Table, write_page
from slimformer.report.plots import Series, curves, scatter

__all__ = ["Facts", "Figure", "Page", "Series", "Table", "curves", "scatter", "write_page"]
