"""Training one model at all of its nested sizes (arXiv 2310.07707)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, UsageError
from slimformer.methods.corpus import token_progress
from slimformer.methods.elastic.config import ElasticConfig
from slimformer.methods.method import Showcase
from slimformer.methods.origin import FAMILY, Scratch
from slimformer.methods.sized import SizedMethod, sizes_of_base
from slimformer.methods.streaming import TASK, open_parts, stream_features
from slimformer.models import is_causal
from slimformer.models.building import shape_of
from slimformer.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage
    from slimformer.methods.origin import Origin
    from slimformer.sizes import Elastic as Sizes
    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features
    from slimformer.train import Objective, Trained

#: Examples of one forward while activations are measured.
BATCH = 32


class Elastic(SizedMethod[ElasticConfig]):
    """Train one model whose nested sizes all work: any of them, and mixtures of them, can be used or extracted.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `ElasticConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = elastic(model="minilm", task="classification", data="reviews", out="sentiment-elastic")
        >>> result.metrics["accuracy@S"]
    """

    name = "elastic"
    config_class = ElasticConfig
    accepts = ("plain", "elastic")
    required = ("out",)
    leaves = "elastic"
    showcase = Showcase("MiniLM, elastic, size", {"lr": 2e-4}, sizes=("S", "XL"))
    headless = True

    @property
    def base(self) -> str | None:  # type: ignore[override]
        """The checkpoint the run starts from; None for new weights."""
        return self.config.model

    def check(self) -> None:
        """Refuse what cannot be started from or learned; take the sizes and the order of an elastic base."""
        super().check()
        if self.config.corpus is None:
            self.config.require("task", "data")
        else:
            self.config = self.config.model_copy(update={"task": TASK})
        if self.config.model is None and not self.config.is_new:
            raise UsageError("`--model` must be given, or `--scratch` and a shape such as `--layers 6` for new weights")
        if self.config.model is not None:
            self._adopt(self.config.model)
        config = self.config
        if config.output_sizes is not None and not get_task(str(config.task)).kind().embeds:
            raise ConfigError(
                f"`output_sizes` is `{config.output_sizes}`, shares of the dimensions of embeddings, and task "
                f"`{config.task}` has a head; leave it out, or give a task such as `retrieval`"
            )

    def _adopt(self, base: str) -> None:
        """Take the sizes and the order of an elastic base; refuse others."""
        self.record = sizes_of_base(base)
        if self.record is not None:
            self.config = self.config.adopting(base, self.record.nested(), self.record.skip)

    def origin(self) -> Origin:
        """A checkpoint or new weights."""
        return Scratch(self.config) if self.config.is_new else super().origin()

    def load_data(self, origin: Origin) -> TaskData:
        """The task's data, or a corpus."""
        if self.config.corpus is None:
            return super().load_data(origin)
        return open_parts(self.config, causal=is_causal(origin.config))

    def training_features(self, length: int | None) -> Features:
        """The examples of the task, or a stream of the corpus."""
        if self.config.corpus is None:
            return super().training_features(length)
        assert length is not None
        return stream_features(self.config, self.data, self.processor, length, token_progress(self.options.quiet))

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Order the neurons, nest the sizes and say what each step trains."""
        from slimformer.methods.elastic.training import ElasticObjective

        config, kind = self.config, self.data.kind
        self.sizes = self._nest(model)
        # Neighbouring parts have one size, so that examples meet the same one however processes share them.
        turns = config.accumulation if config.training == "joint" else 0
        joint = [self.sizes.allocation(size) for size in self.sizes.sizes for _ in range(turns)]
        return ElasticObjective(
            model, config.distil_weight, config.temperature, kind.items, joint, kind.loss_term, kind.teaching_term
        )

    def _nest(self, model: PreTrainedModel) -> Sizes:
        """Give the model the sizes of its base, or those of the settings after its neurons are ordered."""
        from slimformer.sizes import ORDERINGS, make_elastic, reorder
        from slimformer.sizes.table import SizesRecord

        if self.record is not None:
            return self.record.nest(model)
        sizes, ordering = self.config.nested(), ORDERINGS[self.config.ordering]
        heads = any(size.heads < 1 for size in sizes)
        order = None if ordering is None else reorder(model, ordering(model, self._calibration()), heads=heads)
        elastic = make_elastic(model, sizes, skip=self.config.skip)
        self.record = SizesRecord.of(elastic, order)
        return elastic

    def resolved(self) -> dict[str, Any]:
        """How sizes are trained, and the shape of new weights."""
        config = self.config
        drawn = ",".join(f"{chance:g}" for chance in config.chances(len(self.sizes.sizes)))
        vocabulary = getattr(self.model.config, "vocab_size", None)  # images have none
        new = {"scratch": FAMILY, "vocabulary": vocabulary, **shape_of(self.model)}
        return {
            **super().resolved(),
            "order": config.ordering,
            "distil": config.distil_weight,
            "probabilities": drawn if config.training == "sampled" else None,
            "corpus_weights": getattr(self.features["train"], "shares", None),
            **(new if config.is_new else {}),
        }

    def train(self, folder: Path) -> Trained:
        """Train; where all sizes share a batch, each gets a part of it."""
        if self.config.training == "joint":
            parts = self.config.accumulation * len(self.sizes.sizes)
            self.config = self.config.model_copy(update={"accumulation": parts})
        return super().train(folder)

    def before_step(self, total: int) -> Callable[[int], None] | None:
        """Draw the size of each step; where all sizes share a batch, the objective has them take turns."""
        from slimformer.methods.elastic.training import SizeSchedule

        config = self.config
        if config.training == "joint":
            return None
        return SizeSchedule(
            self.sizes,
            config.chances(len(self.sizes.sizes)),
            config.seed,
            round(config.uniform_start * total),
            per_block=config.training == "per-block",
        )

    @property
    def chooses_by(self) -> str:
        """The metric that decides which weights are kept."""
        primary = self.data.primary_metric
        return f"mean {primary}" if self.config.choose_by == "mean" else primary

    def finish(self) -> None:
        """Take the sizes off: what is saved is the largest model, and which sizes are nested in it."""
        self.measure_sizes()

    def storage(self) -> Storage:
        """The largest model as a plain checkpoint, the sizes beside it."""
        from slimformer.artifact.storage.elastic import ElasticStorage

        return ElasticStorage(self.record)

    def _calibration(self) -> Iterator[dict[str, Any]]:
        """Some training examples in batches, without labels."""
        from slimformer.objectives.recording import LABELS

        examples, collate = self.features["train"], self.data.collator(self.processor)
        count = min(self.config.calibration, len(examples))
        stride = len(examples) / count
        chosen = iter([examples[int(number * stride)] for number in range(count)])
        while batch := list(islice(chosen, BATCH)):
            inputs = collate(batch)
            yield {name: value for name, value in inputs.items() if name not in LABELS}
