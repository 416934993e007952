"""Training: one loop for all methods, on `transformers.Trainer`."""

from slimformer.objectives import Loss
from slimformer.train.folder import TrainingFolder
from slimformer.train.objective import CountedObjective, Objective, SteppedObjective
from slimformer.train.options import StepOptions, TrainingOptions
from slimformer.train.run import Trained, count_steps, train

__all__ = [
    "CountedObjective",
    "Loss",
    "Objective",
    "StepOptions",
    "SteppedObjective",
    "Trained",
    "TrainingFolder",
    "TrainingOptions",
    "count_steps",
    "train",
]
