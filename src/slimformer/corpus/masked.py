"""Examples that bring a masked copy of themselves, for objectives that look at both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer.models import IGNORED
from slimformer.objectives.terms.term import MASKED
from slimformer.tasks.features import PaddingCollator, TensorCollator

if TYPE_CHECKING:
    from slimformer.tasks.features import Inputs
    from slimformer.tasks.masking import PatchMasking, TokenMasking, WordDeletion


class MaskedExamples(Sequence["Inputs"]):
    """Examples with a masked copy, the same for the same seed and number.

    Args:
        examples: The examples.
        masking: How tokens or patches are hidden, or words deleted.
    """

    #: Tells trainers that the order is not theirs to change.
    shuffled: ClassVar[bool] = True

    def __init__(self, examples: Sequence[Inputs], masking: TokenMasking | PatchMasking | WordDeletion) -> None:
        self.examples = examples
        self.masking = masking

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: Any) -> Any:
        example = self.examples[index]
        # Numbers go on over the passes, so a text is masked otherwise each time.
        masked = self.masking(example, index, epoch=0)
        changed = {name: value for name, value in masked.items() if value is not example.get(name)}
        return {**example, **{f"{MASKED}.{name}": value for name, value in changed.items()}}


def masked_collator(collate: TensorCollator) -> TensorCollator:
    """The collator of examples that pads their masked copies too."""
    padding = collate.collate
    assert isinstance(padding, PaddingCollator)
    fill = {f"{MASKED}.input_ids": padding.fill["input_ids"], f"{MASKED}.labels": IGNORED}
    return TensorCollator(replace(padding, fill={**padding.fill, **fill}))
