"""The method: views on the weights, a float teacher, and codes that are kept as they were trained."""

from __future__ import annotations

import copy
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from slimformer.methods.manner import configure
from slimformer.methods.quantize.config import QuantizeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.methods.quantize.objective import Dropout
    from slimformer.methods.task_run import TaskResult
    from slimformer.train import Objective


def quantize(config: QuantizeConfig | None = None, **settings: Any) -> TaskResult:
    """Train a fine-tuned model on with a few levels per weight, and its float self as teacher.

    What is evaluated is the quantized model: its weights are the levels, its activations are rounded.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `QuantizeConfig` and of `Manner` (resume, overwrite, quiet, command).

    Example:
        >>> result = quantize(model="sentiment", task="classification", data="reviews", out="sentiment-ternary")
        >>> result.metrics["accuracy"]
    """
    from slimformer.methods.quantize.teacher import find_or_train
    from slimformer.methods.task_run import run_on_task

    config, manner = configure(QuantizeConfig, config, settings)
    config.require("model", "task", "data")
    run = _Run(config)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="slimformer-")) if config.out is None else None
        base = find_or_train(config, manner, scratch)
        return run_on_task(
            "quantize",
            config,
            config,
            manner,
            base=base,
            out=config.out,
            prepare=run.prepare,
            finish=run.finish,
        )


class _Run:
    """What happens to the model around its training."""

    def __init__(self, config: QuantizeConfig) -> None:
        self.config = config
        self.attention: str | None = None
        self.dropout: Dropout = []

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Keep the float model as teacher, and quantize the numbers of the one that is trained."""
        from slimformer.methods.quantize.objective import kd_objective, take_dropout
        from slimformer.methods.quantize.placement import quantize_numbers

        config = self.config
        self.attention = model.config._attn_implementation
        teacher = None if config.kd == "none" else copy.deepcopy(model)
        quantize_numbers(model, config)
        if not config.keeps_dropout:
            self.dropout = take_dropout(model)
        return None if teacher is None else kd_objective(teacher, model, config)

    def finish(self, model: PreTrainedModel) -> None:
        """Make the model compute with codes, scales and small floats alone, just as they will lie in the file."""
        from slimformer.artifact.storage.packed_weights import keep_quantized
        from slimformer.artifact.storage.quantizer import adopt
        from slimformer.methods.quantize.objective import give_back
        from slimformer.objectives.balance import remove_progress
        from slimformer.views import bake, quantized_weights, rounding_of
        from slimformer.views.attention import use_attention

        remove_progress(model)
        give_back(self.dropout)
        if rounding_of(model) is None and self.attention is not None:
            use_attention(model, self.attention)  # scores were read from ours while training
        weights = quantized_weights(model)
        bake(model)
        keep_quantized(model, weights, small=self.config.store == "small")
        adopt(model)
