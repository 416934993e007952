"""Training: one loop for all methods, on `transformers.Trainer`."""

from slimformer.objectives import Loss
from slimformer.train.objective import CountedObjective, Objective
from slimformer.train.options import StepOptions, TrainingOptions
from slimformer.train.run import Trained, check_folder, prepare_folder, remove_folder, train

__all__ = [
    "CountedObjective",
    "Loss",
    "Objective",
    "StepOptions",
    "Trained",
    "TrainingOptions",
    "check_folder",
    "prepare_folder",
    "remove_folder",
    "train",
]
