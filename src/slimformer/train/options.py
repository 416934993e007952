"""How to train, whatever is trained: the settings all training commands share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import Epochs, Positive, PositiveNumber, Threads, Weight, split_items
from slimformer.train.rates import RateOptions

#: Settings that say how a run is carried out and not what it computes: it may be resumed with others.
CARRIED_OUT = frozenset(
    {"accumulation", "gradient_checkpointing", "shard", "save_every", "log_every", "threads", "tensorboard", "track"}
)

#: What losses and metrics may be sent to.
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class StepOptions(RateOptions):
    """Settings of the optimizer, the schedule and the steps.

    `batch_size` counts the examples of one optimizer step over all processes and accumulation steps, so that
    the number of processes changes how fast a run is and not what it computes.
    """

    max_steps: Positive | None = Field(
        None,
        description="Optimizer steps to take, however many epochs that is; by default as `--epochs` and the data say.",
    )
    batch_size: Positive = Field(32, description="Examples per optimizer step, over all processes.")
    accumulation: Positive = Field(1, description="Parts a batch is computed in, to save memory.")
    lr: PositiveNumber = Field(5e-5, description="Peak learning rate.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the learning rate falls after the warm-up."
    )
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of the steps over which the learning rate rises.")
    weight_decay: Weight = Field(0.01, description="Decoupled weight decay; norms and biases have none.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of Adam's first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of Adam's second moment.")
    clip: Weight = Field(1.0, description="Bound on the gradient's norm; 0 for none.")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the order of examples, dropout and new weights.")
    bf16: bool = Field(False, description="Compute in bfloat16 where it is safe; weights stay in float32.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    shard: bool = Field(
        False,
        description="Divide weights, gradients and optimizer over the processes (FSDP2); else each keeps all.",
    )
    save_every: Positive = Field(500, description="Steps between checkpoints for `--resume`.")
    log_every: Positive = Field(10, description="Steps between progress lines.")
    threads: Threads | None = Field(None, description="CPU threads; by default what PyTorch chooses.")
    tensorboard: str | None = Field(None, description="Folder for TensorBoard's event files.")
    track: Annotated[tuple[Tracker, ...] | None, BeforeValidator(split_items)] = Field(
        None,
        description="Where losses and metrics are sent: `wandb`, `mlflow`, `trackio`, several with commas; their own "
        "environment variables say where that is. `tensorboard` needs its folder.",
    )

    @model_validator(mode="after")
    def _events_have_a_folder(self) -> Self:
        if "tensorboard" in (self.track or ()) and self.tensorboard is None:
            raise ValueError("`track` names `tensorboard`, which writes files; give `tensorboard` a folder for them")
        return self

    @property
    def plans_ahead(self) -> bool:
        """Whether what a step does depends on how many there will be, so that the run cannot be made longer."""
        return self.schedule != "constant" or self.warmup > 0


class TrainingOptions(StepOptions):
    """The same for data that is gone through in epochs and measured on dev."""

    epochs: Epochs = Field(3.0, description="Passes over the training data; `--max-steps` wins over it.")
    group_by_length: bool = Field(False, description="Put texts of similar length into one batch.")
    eval_every: Positive | None = Field(
        None, description="Steps between evaluations on dev; by default those of an epoch."
    )
    best: bool = Field(True, description="Keep the weights of the best evaluation instead of the last ones.")
