"""Reports: tables and plots on one self-contained HTML page."""

from slimformer.report.finding import Finding
from slimformer.report.page import Facts, Figure, Page, Table, write_page
from slimformer.report.plots import Measured, Series, bars, clouds, curves, front, heatmaps, scatter, tradeoffs

__all__ = [
    "Facts",
    "Figure",
    "Finding",
    "Measured",
    "Page",
    "Series",
    "Table",
    "bars",
    "clouds",
    "curves",
    "front",
    "heatmaps",
    "scatter",
    "tradeoffs",
    "write_page",
]
