"""Quantization: views on the weights, a float teacher, and codes that are kept as they were trained."""

from __future__ import annotations

import copy
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.errors import ConfigError
from slimformer.files import as_path
from slimformer.inference.door import look_up
from slimformer.inference.evaluation import head_classes
from slimformer.methods.elastic.config import ElasticConfig
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.method import Method, Phase, Showcase
from slimformer.methods.output import OutputDirectory
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.sized import SizedMethod, sizes_of_base
from slimformer.tasks import get_task
from slimformer.tasks.options import load_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage
    from slimformer.inference.source import Source
    from slimformer.methods.quantize.student import Dropout
    from slimformer.train import Objective

#: Learning rate of a teacher that has to be trained first; to choose another, fine-tune it with `finetune`.
TEACHER_LR = 1e-4


class Quantize(SizedMethod[QuantizeConfig]):
    """Train a fine-tuned model on with a few levels per weight, and its float self as teacher.

    What is evaluated is the quantized model: its weights are the levels, its activations are rounded. Of an elastic
    model all sizes are trained, in turns, and kept: the codes of a smaller one are the first of the largest one's.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `QuantizeConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = quantize(model="sentiment", task="classification", data="reviews", out="sentiment-ternary")
        >>> result.metrics["accuracy"]
    """

    name = "quantize"
    config_class = QuantizeConfig
    accepts = ("plain", "elastic")
    leaves = "packed"
    # A step of quantization costs more than one of fine-tuning.
    showcase = Showcase("MiniLM, ternary", {"lr": 2e-4, "max_steps": 100}, start_from="finetune")

    #: The fine-tuned model where one had to be trained first.
    teacher: str | None = None
    attention: str | None = None
    dropout: Dropout

    @classmethod
    def for_settings(cls, config: QuantizeConfig) -> type[Method[Any]]:
        """Without labels it goes another way."""
        if not config.post_training:
            return cls
        from slimformer.methods.quantize.post_training.method import PostTraining

        return PostTraining

    @property
    def base(self) -> str:
        """The fine-tuned model to start and learn from."""
        return self.teacher or super().base

    def phases(self) -> Sequence[Phase]:
        """A base whose head does not know the task is fine-tuned first, beside the result."""
        config = self.config
        assert config.task is not None
        source, task = look_up(super().base), get_task(config.task)
        if self._knows(source):
            return ()
        self._check_skeleton(source)
        folder = self._teacher_folder(task.name)
        self.teacher = str(folder)
        OutputDirectory.of(self.teacher).check_apart(config)
        method, config_class = ("elastic", ElasticConfig) if source.is_nested else ("finetune", FinetuneConfig)
        shared = {name: value for name, value in config.given().items() if name in FinetuneConfig.model_fields}
        settings = config_class.make({**shared, "lr": TEACHER_LR, "out": self.teacher})
        note = f"`{config.model}` has no head for task `{task.name}`; it is fine-tuned first, into `{folder}`"
        return (Phase(method, settings, note),)

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Keep the float model as teacher, and quantize the numbers of the one that is trained."""
        from slimformer.methods.quantize.student import kd_objective, quantize_numbers, take_dropout

        config = self.config
        self._check_stages()
        self.attention = model.config._attn_implementation
        teacher = None if config.kd == "none" else copy.deepcopy(model)
        quantize_numbers(model, config)
        self._nest(model)
        self.dropout = [] if config.keeps_dropout else take_dropout(model)
        return None if teacher is None else kd_objective(teacher, model, config, self.data.kind.items)

    def resolved(self) -> dict[str, Any]:
        """What follows from other settings."""
        config = self.config
        return {
            **super().resolved(),
            "embedding": config.weights,
            "dropout": config.keeps_dropout,
            "first_stage": config.steps_of_first_stage,
        }

    def before_step(self, total: int) -> Callable[[int], None] | None:
        """Draw the size of each step, all alike, where there are several."""
        if self.record is None:
            return None
        from slimformer.methods.elastic.training import SizeSchedule

        count = len(self.sizes.sizes)
        return SizeSchedule(self.sizes, (1 / count,) * count, self.config.seed)

    @property
    def chooses_by(self) -> str:
        """The metric that decides which weights are kept: of several sizes, the mean."""
        return super().chooses_by if self.record is None else f"mean {self.data.primary_metric}"

    def storage(self) -> Storage | None:
        """Packed; with the sizes beside it where there are several."""
        if self.record is None:
            return None
        from slimformer.artifact.storage.elastic import ElasticStorage, PackedElasticStorage

        packed = getattr(self.model, "is_quantized", False)
        return PackedElasticStorage(self.record) if packed else ElasticStorage(self.record)

    def finish(self) -> None:
        """Make the model compute with codes, scales and small floats alone, just as they will lie in the file."""
        from slimformer.artifact.storage.packed import keep_quantized
        from slimformer.artifact.storage.quantizer import adopt
        from slimformer.methods.quantize.student import give_back
        from slimformer.objectives.balance import remove_progress
        from slimformer.sizes import bake_size
        from slimformer.views import bake, quantized_weights, rounding_of
        from slimformer.views.attention import use_attention

        model = self.model
        remove_progress(model)
        give_back(self.dropout)
        if rounding_of(model) is None and self.attention is not None:
            use_attention(model, self.attention)  # scores were read from ours while training
        if self.record is not None:
            self.sizes.set(self.sizes.largest)
        weights = quantized_weights(model)
        bake(model) if self.record is None else bake_size(model)
        keep_quantized(model, weights, small=self.config.packing == "small")
        adopt(model)
        if self.record is not None:
            self.sizes = self.record.nest(model)
            self.measure_sizes()

    def _nest(self, model: PreTrainedModel) -> None:
        """Put the sizes of an elastic base above the quantized weights; refuse those no teacher compares with."""
        self.record = sizes_of_base(self.base)
        if self.record is None:
            return
        if self.config.kd != "none" and any(size.heads < 1 or size.depth < 1 for size in self.record.nested()):
            raise ConfigError(
                f"sizes of `{self.base}` have fewer heads or blocks, in which they cannot be compared with a teacher "
                "layer by layer; give `--kd none`"
            )
        self.sizes = self.record.nest(model)

    def _check_stages(self) -> None:
        """Refuse a first stage that leaves nothing for the second; with epochs, the data tell how long both are."""
        config = self.config
        if config.stages == 1 or config.max_steps is not None or config.first_stage is None:
            return
        steps = math.ceil(config.epochs * math.ceil(len(self.features["train"]) / config.batch_size))
        if config.first_stage >= steps:
            raise ConfigError(
                f"`first_stage` is {config.first_stage}, and {config.epochs:g} epochs are {steps} steps, which leaves "
                "none for the second of two stages; give more epochs, or a shorter first stage"
            )

    def _knows(self, source: Source) -> bool:
        """Whether a checkpoint's head was trained for this very task, as far as can be seen."""
        config = self.config
        assert config.task is not None
        task = get_task(config.task)
        kind = task.kind()
        if not kind.accepts(source.architecture, head_classes(source.name, source.config, task)):
            return False
        labels: Sequence[str] | None = task.preset.labels
        if labels is None and kind.labelled:
            labels = load_data(self.data_options, ("train", "dev"), causal=models.is_causal(source.config)).labels
        return kind.head_fits(source.config, labels)

    def _check_skeleton(self, source: Source) -> None:
        """Refuse settings that do not fit the model before its teacher is trained; a model without weights tells."""
        import torch
        import transformers

        from slimformer.methods.quantize.student import kd_objective, quantize_numbers

        assert self.config.task is not None
        head = head_classes(source.name, source.config, get_task(self.config.task))[0]
        with torch.device("meta"):
            skeleton = getattr(transformers, head)(copy.deepcopy(source.config))
            if self.config.kd != "none":
                kd_objective(copy.deepcopy(skeleton), skeleton, self.config)
            quantize_numbers(skeleton, self.config)

    def _teacher_folder(self, task: str) -> Path:
        if self.config.out is not None:
            out = as_path(self.config.out)
            return out.with_name(f"{out.name}.finetuned")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                f"`{self.config.model}` has no head for task `{task}`, and several processes cannot share one that is "
                "kept in memory; give `out`, or fine-tune it first"
            )
        scratch = self.resources.enter_context(tempfile.TemporaryDirectory(prefix="slimformer-"))
        return Path(scratch) / "finetuned"
