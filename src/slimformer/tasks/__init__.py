"""Tasks: data in, columns, heads and metrics.

Importing this package is quick; torch, transformers and what the metrics need are loaded when first used.
"""

from slimformer.tasks import presets  # noqa: F401  (registers the tasks known)
from slimformer.tasks.metrics import leave_one_out, one_nearest_neighbour
from slimformer.tasks.preset import Carve, Hub, Layout, Preset, known, register
from slimformer.tasks.splits import Split
from slimformer.tasks.task import Task, TaskData, get_task

__all__ = [
    "Carve",
    "Hub",
    "Layout",
    "Preset",
    "Split",
    "Task",
    "TaskData",
    "get_task",
    "known",
    "leave_one_out",
    "one_nearest_neighbour",
    "register",
]
