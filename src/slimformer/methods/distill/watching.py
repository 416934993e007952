"""A model whose forward returns what an objective compares, and computes nothing beyond it.

The teacher is cut after the block it is needed for. A student that learns relations of its last block ends with the
queries, keys and values there: the rest of that block costs nothing. As a module of its own it can be wrapped by
distributed training like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.models.sentence import pool
from slimformer.taps import Taps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedModel

    from slimformer.taps import Name

#: What is known only when the whole model has run.
WHOLE = frozenset({"pooled", "logits"})


class Watched(nn.Module):
    """Run a model as far as needed and return what was asked for.

    Args:
        model: Teacher or student.
        block: The block to look at; negative numbers count from the last.
        names: What to return: names of `taps.BlockRecord`, `pooled` for the sentence embedding, `logits`.
        pooling: How the sentence embedding comes about: names of `models.sentence.FLAGS`.
        maps: Modules that what is returned under their name goes through, trained along with the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        block: int,
        names: Iterable[str],
        pooling: str | Sequence[str] = "mean",
        maps: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.block = block
        self.names = tuple(names)
        self.pooling = pooling
        self.maps = nn.ModuleDict(dict(maps or {}))

    def forward(self, **inputs: Any) -> dict[str, Tensor]:
        """What was asked for, by name."""
        if Anatomy.of(self.model).family.causal:
            inputs = {"use_cache": False, **inputs}
        if "pixel_values" in inputs:
            inputs = {**inputs, "pixel_values": inputs["pixel_values"].to(self.model.dtype)}
        record = cast("list[Name]", [name for name in self.names if name not in WHOLE])
        outputs: Any = None
        with Taps(self.model, self.block if record else (), record) as taps:
            if WHOLE & set(self.names):
                outputs = self.model(**inputs)
            else:
                taps.run(**inputs)
            seen: dict[str, Tensor] = {str(name): getattr(taps[self.block], name) for name in record}
        if "pooled" in self.names:
            seen["pooled"] = pool(outputs.last_hidden_state, inputs.get("attention_mask"), self.pooling)
        if "logits" in self.names:
            seen["logits"] = outputs.logits
        return {name: self.maps[name](value) if name in self.maps else value for name, value in seen.items()}

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Let the trainer switch it on as on the model itself."""
        self.model.gradient_checkpointing_enable(*args, **kwargs)
