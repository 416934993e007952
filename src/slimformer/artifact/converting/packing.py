"""Packing: a model with quantized views as one that is saved packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import ViewError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pack(model: PreTrainedModel, *, small: bool = False) -> PreTrainedModel:
    """Bake a model with quantized views, in place, so that `save` and `save_pretrained` write its codes and scales.

    What is not under a quantized view is rounded to half precision, as `slimformer quantize` does it in the end.
    Activations that are rounded stay so, and the file says how.

    Args:
        model: A model of Transformers whose weights are under a `QuantizedView`, or with rounded activations.
        small: Whether formats that have a smaller layout are stored in it, which takes more work to read.

    Example:
        >>> attach(Anatomy.of(model).blocks[0].query, QuantizedView("int8"))
        >>> save("out", pack(model), processor=tokenizer, step=Step(method="own"))
    """
    from slimformer.artifact.storage.packed import keep_quantized
    from slimformer.artifact.storage.quantizer import adopt
    from slimformer.views import bake, quantized_weights, rounding_of

    weights = quantized_weights(model)
    if not weights and rounding_of(model) is None:
        raise ViewError(
            f"`{type(model).__name__}` has no quantized view whose codes could be packed; attach `QuantizedView` "
            "first, and leave the baking to `pack`"
        )
    bake(model)
    keep_quantized(model, weights, small=small)
    adopt(model)
    return model
