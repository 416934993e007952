"""`slimformer demo`: a real model, real reviews, a few minutes, and a report to look at.

Model and data come from the package index, so the demo needs no network once it is installed.
"""

from slimformer.demo.page import COLUMNS, Row
from slimformer.demo.running import SETTINGS, Demo, run_demo

__all__ = ["COLUMNS", "SETTINGS", "Demo", "Row", "run_demo"]
