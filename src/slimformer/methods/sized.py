"""Training at every nested size of a model, where it has several: measured at each, chosen by all, stored with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from slimformer.inference.source import is_artifact
from slimformer.methods.method import AnyConfig
from slimformer.methods.task import TaskMethod, TaskResult
from slimformer.models import located

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.sizes import Elastic as Sizes
    from slimformer.sizes.table import SizesRecord
    from slimformer.train import Trained


class SizedMethod(TaskMethod[AnyConfig], Generic[AnyConfig]):
    """A method on a task that keeps the sizes of an elastic base."""

    #: What is nested in the model; None where it has one size.
    record: SizesRecord | None = None
    sizes: Sizes
    measured: dict[str, float]

    def measure(self, trained: Trained) -> dict[str, float]:
        """Metrics of every size, measured before the sizes were taken off."""
        if self.record is None:
            return super().measure(trained)
        self.model.eval()
        return self.measured

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> TaskResult:
        """What the caller gets: the model with its sizes."""
        if self.record is not None:
            self.record.nest(self.model)
        return super().result(folder, metrics, trained)

    def measure_sizes(self) -> None:
        """Measure an elastic model at every size and take the sizes off: it is saved without, and a record of them."""
        from slimformer.sizes import make_plain

        self.sizes.set(self.sizes.largest)
        self.measured = self._evaluate(self.model)
        make_plain(self.model)

    def _evaluate(self, model: Any) -> dict[str, float]:
        """Metrics of the largest size under their names, the primary one of each as `accuracy@S`, and its mean."""
        from slimformer.sizes import Elastic as Sizes
        from slimformer.sizes import is_elastic

        if not is_elastic(model):
            return super()._evaluate(model)
        sizes, primary = Sizes.of(model), self.data.primary_metric
        by_size = {}
        for size in sizes.sizes:
            with sizes.at(size):
                by_size[size.name] = super()._evaluate(model)
        *_, largest = by_size.values()
        named = {f"{primary}@{size}": metrics[primary] for size, metrics in by_size.items()}
        return {**largest, **named, f"mean {primary}": sum(named.values()) / len(named)}


def sizes_of_base(base: str) -> SizesRecord | None:
    """What is nested in the base of a run; None where it has one size."""
    from slimformer.sizes.table import SIZES, read_sizes

    folder = located(base)
    return read_sizes(folder) if is_artifact(folder) and (folder / SIZES).is_file() else None
