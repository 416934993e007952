"""Training one model at all of its nested sizes (arXiv 2310.07707)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from slimformer.methods.elastic.config import ElasticConfig
from slimformer.methods.task import TaskMethod, TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.storage.elastic import SizesRecord
    from slimformer.artifact.storage.handler import Storage
    from slimformer.sizes import Elastic as Sizes
    from slimformer.train import Objective, Trained

#: Examples of one forward while activations are measured.
BATCH = 32


class Elastic(TaskMethod[ElasticConfig]):
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
    leaves = "elastic"

    sizes: Sizes
    record: SizesRecord
    measured: dict[str, float]

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Order the neurons, nest the sizes and say what each step trains."""
        from slimformer.artifact.storage.elastic import SizesRecord
        from slimformer.methods.elastic.training import ElasticObjective
        from slimformer.sizes import ORDERINGS, make_elastic, reorder

        config = self.config
        sizes = config.nested()
        heads = any(size.heads < 1 for size in sizes)
        ordering = ORDERINGS[config.order]
        order = None if ordering is None else reorder(model, ordering(model, self._calibration()), heads=heads)
        self.sizes = make_elastic(model, sizes, skip=config.skip)
        self.record = SizesRecord.of(self.sizes, order)
        joint = [self.sizes.allocation(size) for size in sizes] if config.training == "joint" else []
        return ElasticObjective(model, config.distil, config.temperature, self.data.kind.items, joint)

    def train(self, folder: Path) -> Trained:
        """Train; where all sizes share a batch, each gets a part of it."""
        if self.config.training == "joint":
            parts = self.config.accumulation * len(self.sizes.sizes)
            self.config = self.config.model_copy(update={"accumulation": parts})
        return super().train(folder)

    def before_step(self, total: int) -> Callable[[int], None] | None:
        """Draw the size of each step."""
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
        from slimformer.sizes import make_plain

        self.sizes.set(self.sizes.largest)
        self.measured = self._evaluate(self.model)
        make_plain(self.model)

    def measure(self, trained: Trained) -> dict[str, float]:
        """Metrics of every size, measured before the sizes were taken off."""
        self.model.eval()
        return self.measured

    def storage(self) -> Storage:
        """The largest model as a plain checkpoint, the sizes beside it."""
        from slimformer.artifact.storage.elastic import ElasticStorage

        return ElasticStorage(self.record)

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> TaskResult:
        """What the caller gets: the model with its sizes."""
        self.record.nest(self.model)
        return super().result(folder, metrics, trained)

    def _evaluate(self, model: Any) -> dict[str, float]:
        """Metrics of the largest size under their names, the primary one of each as `accuracy@S`, and its mean."""
        from slimformer.sizes import Elastic as Sizes

        sizes, primary = Sizes.of(model), self.data.primary_metric
        by_size = {}
        for size in sizes.sizes:
            with sizes.at(size):
                by_size[size.name] = super()._evaluate(model)
        *_, largest = by_size.values()
        named = {f"{primary}@{size}": metrics[primary] for size, metrics in by_size.items()}
        return {**largest, **named, f"mean {primary}": sum(named.values()) / len(named)}

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
