"""A thin layer on `transformers.Trainer`: our objective, our order of examples, checkpoints that survive a kill."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from slimformer.errors import DivergenceError, TrainingError
from slimformer.objectives.terms.predictions import count_labels, shifts_labels
from slimformer.train import checkpoints
from slimformer.train.checkpoints import read_metadata, read_weights, write_weights
from slimformer.train.loop.sampler import EpochSampler
from slimformer.train.objective import CountedObjective
from slimformer.train.sharding.state import load_optimizer, read_optimizer, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn
    from torch.utils.data import Sampler

    from slimformer.objectives import Loss
    from slimformer.train.objective import Objective
    from slimformer.train.sharding.sharded import Sharded

WEIGHTS = "weights.safetensors"
BEST = "best.safetensors"
#: Under this name the items of a loss are counted that is one mean.
LOSS = "loss"


class SlimTrainer(Trainer):
    """The loop of Transformers with what slimformer needs done differently.

    Args:
        objective: What to minimise; None for the loss the model itself returns.
        items: How many items of a batch the task's own loss is a mean over; None for labelled tokens or examples.
        evaluation: Returns metrics of the model as it is now; None for no evaluation.
        primary: The metric that decides which weights are best; None to keep the last ones.
        greater_is_better: Whether more of it is better.
        lengths: Lengths of the examples, to group them by.
        sharded: The model's division over processes; None where each holds all of it.
        arguments: Whatever `transformers.Trainer` takes.
    """

    def __init__(
        self,
        *,
        objective: Objective | None = None,
        items: Callable[[Mapping[str, Any]], int] | None = None,
        evaluation: Callable[[nn.Module], dict[str, float]] | None = None,
        primary: str | None = None,
        greater_is_better: bool = True,
        lengths: list[int] | None = None,
        sharded: Sharded | None = None,
        **arguments: Any,
    ) -> None:
        self.sharded = sharded
        super().__init__(**arguments)
        # Neither Transformers nor Accelerate wraps a model then. Said here, as the loop would refuse to save it, which
        # we do ourselves.
        self.is_distributed_loading_by_transformers = sharded is not None
        self.objective: Objective | None = objective
        self.items = items
        self.evaluation = evaluation
        self.primary = primary
        self.sign = 1 if greater_is_better else -1
        self.lengths = lengths
        self._shifts_labels = shifts_labels(self.trained)
        self.parts: dict[str, Tensor] = {}
        self.totals: dict[str, float] = {}
        # The loop would hand the model the number of items and trust it to divide by that; heads that keep
        # their own mean (BERT's among them) do not, and accumulation would change the loss. We weigh instead.
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = True

    @property
    def folder(self) -> Path:
        """Where checkpoints and the best weights of this run lie until it is done."""
        return Path(str(self.args.output_dir))

    @property
    def trained(self) -> nn.Module:
        """The model without the wrappers of distributed training."""
        return cast("nn.Module", self.model)

    def run(self, checkpoint: Path | None) -> None:
        """Train from the start or on from a checkpoint; after the last step there is nothing left to train.

        The loop would take a step more before it sees that.
        """
        if checkpoint is None or checkpoints.step_of(checkpoint) < self.args.max_steps:
            try:
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            except UnpicklingError as error:  # torch reads tensors and numbers alone, and a checkpoint has no more
                raise TrainingError(
                    f"the checkpoint `{checkpoint}` holds code or what no run writes, and is not read; remove the "
                    "folder, or start without `--resume`"
                ) from error
            return
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Ask the objective, and refuse a loss that is no number.

        A loss is a mean over the items of its part of the batch, or a sum of such means. Weighted by their share, the
        parts of all accumulation steps and processes add up to the loss of the whole batch.
        """
        totals = None if num_items_in_batch is None else self.totals
        if isinstance(self.objective, CountedObjective):
            loss = self._note(self.objective(model, inputs, totals))
        else:
            share = 1.0 if totals is None else self._items(inputs) / totals[LOSS]
            if self.objective is None:
                loss = share * cast("Tensor", super().compute_loss(model, inputs))
            else:
                loss = self._note(self.objective(model, inputs), share)
        if not math.isfinite(value := float(loss.detach())):
            raise DivergenceError(
                f"the loss became {value} at step {self.state.global_step + 1} with learning rate "
                f"{self._get_learning_rate():.3g}; lower `--lr`, clip gradients with `--clip`, or check the data"
            )
        return loss

    def _note(self, loss: Loss, share: float = 1.0) -> Tensor:
        """Keep the terms of a loss for the log, and return its share of the total."""
        for name, part in loss.parts.items():
            self.parts[name] = self.parts.get(name, part.new_zeros(())) + share * part.detach()
        return share * loss.total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the terms of the loss as means since the last entry."""
        if "loss" in logs and self.parts:
            steps = max(1, self.state.global_step - getattr(self, "_parts_logged", self._initial_global_step))
            logs = {**logs, **{name: self._mean(total) / steps for name, total in self.parts.items()}}
            self.parts, self._parts_logged = {}, self.state.global_step
        super().log(logs, start_time)

    def _mean(self, total: Tensor) -> float:
        """The mean over all processes, as the loop takes it of the loss itself."""
        if self.args.world_size > 1:
            total = cast("Tensor", self.accelerator.gather(total)).mean()
        return float(total)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure on dev and keep the weights if they are the best so far."""
        assert self.evaluation is not None
        with nullcontext() if self.sharded is None else self.sharded.assembled():
            measured = self.evaluation(self.trained)
        metrics = {f"eval_{name}": value for name, value in measured.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.primary is not None:
            self._keep_if_best(measured)
        return metrics

    def load_best(self) -> dict[str, str]:
        """Put the best weights back into the model; return what was noted with them."""
        path = self.folder / BEST
        self.accelerator.wait_for_everyone()
        if not path.exists():
            return {}
        read_weights(self.trained, path)
        noted = read_metadata(path)
        self.accelerator.wait_for_everyone()  # the process that writes removes the file once it is done
        return noted

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Fetch the parts of one batch, and count its items over all processes."""
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not parts:
            return parts, None
        counts = [self._counts(part) for part in parts]
        names = list(counts[0])
        items = torch.tensor([sum(count[name] for count in counts) for name in names], device=device)
        if self.args.world_size > 1:
            items = cast("Tensor", self.accelerator.gather(items[None])).sum(0)
        # Gradients are averaged over processes, so each divides by its even share of the items.
        self.totals = {name: int(total) / self.args.world_size for name, total in zip(names, items, strict=True)}
        return parts, items.max()

    def _counts(self, inputs: dict[str, Any]) -> dict[str, int]:
        """How many items of a part of a batch each mean in the loss is over."""
        if isinstance(self.objective, CountedObjective):
            return self.objective.counts(inputs)
        return {LOSS: self._items(inputs)}

    def _items(self, inputs: dict[str, Any]) -> int:
        """What a loss that is one mean is a mean over."""
        if self.items is not None:
            return self.items(inputs)
        if self.objective is not None:
            return len(next(iter(inputs.values())))
        return count_labels(inputs, shifted=self._shifts_labels)

    def _keep_if_best(self, measured: dict[str, float]) -> None:
        score = self.sign * measured[self.primary or ""]
        # One process decides, and all help to gather: another might have measured a little else.
        better = [self.args.should_save and self._is_best(score)]
        if self.sharded is not None:
            torch.distributed.broadcast_object_list(better)
        if better[0]:
            noted = {"step": str(self.state.global_step), "score": repr(score)}
            write_weights(self.trained, self.folder / BEST, noted, writes=self.args.should_save)

    def _is_best(self, score: float) -> bool:
        path = self.folder / BEST
        if not path.exists():
            return True
        noted = read_metadata(path, "step", "score")
        # After a kill the file may be ahead of the checkpoint the run went on from; it comes again then.
        return int(noted["step"]) >= self.state.global_step or float(noted["score"]) < score

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        data: Any = self.train_dataset if train_dataset is None else train_dataset
        if getattr(data, "shuffled", False):  # a stream that comes in an order of its own
            return SequentialSampler(data)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return EpochSampler(len(data), self.args.seed, self.lengths, batch, getattr(data, "set_epoch", None))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(self.trained, folder / WEIGHTS, summed=False, writes=self.args.should_save)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.sharded is None:
            return super()._save_optimizer_and_scheduler(output_dir)
        assert self.optimizer is not None
        assert self.lr_scheduler is not None
        state = read_optimizer(self.optimizer)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)
        return None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.sharded is None or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        optimizer, scheduler = (
            torch.load(Path(checkpoint) / name, map_location="cpu", weights_only=True)
            for name in (OPTIMIZER_NAME, SCHEDULER_NAME)
        )
        assert self.optimizer is not None
        assert self.lr_scheduler is not None
        load_optimizer(self.optimizer, optimizer)
        self.lr_scheduler.load_state_dict(scheduler)
        return None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm as a number of all processes together."""
        return whole(super()._get_grad_norm(model, grad_norm))  # type: ignore[no-untyped-call]

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if self.sharded is None:  # else its parts lie there already
            super()._move_model_to_device(model, device)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        checkpoint = self.folder / f"{checkpoints.PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                checkpoints.seal(checkpoint)
        except BaseException:
            if self.args.should_save:
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        if self.args.should_save:
            checkpoints.prune(self.folder, keep=checkpoint)
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        path = Path(resume_from_checkpoint) / WEIGHTS
        read_weights(self.trained if model is None else model, path, summed=False)
