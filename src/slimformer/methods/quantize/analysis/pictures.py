"""Attention maps to look at, one model beside the other."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from slimformer.methods.quantize.analysis.finding import Finding, attention_maps, tokens_that_count
from slimformer.report import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn


def attention_pictures(
    models: dict[str, nn.Module],
    batch: dict[str, Any],
    block: int = -1,
    head: int | None = None,
    sentence: int = 0,
    tokens: Sequence[str] | None = None,
) -> Finding[dict[str, Tensor]]:
    """The attention map of one block for one sentence, for some models, such as the teacher and students of it.

    Args:
        models: Models by name, in the order of the pictures.
        batch: A batch.
        block: Which block.
        head: Which head; None for the mean over the heads.
        sentence: Which sentence of the batch.
        tokens: The sentence's tokens, for the axes.
    """
    data = {}
    for name, model in models.items():
        attention = attention_maps(model, batch)[block]
        chosen = tokens_that_count(batch, attention)[sentence]
        heads = attention[sentence] if head is None else attention[sentence][head : head + 1]
        data[name] = heads.mean(dim=0)[chosen][:, chosen]
    which = "mean of the heads" if head is None else f"head {head}"
    return Finding(data, Figure(f"Attention of block {block}, {which}", _heatmaps(data, tokens)))


def _heatmaps(maps: dict[str, Tensor], tokens: Sequence[str] | None) -> str:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(9.0, 9.0 / len(maps) + 0.6), layout="constrained")
    axes = figure.subplots(1, len(maps), squeeze=False)[0]
    brightest = max(float(attention.max()) for attention in maps.values())
    for axis, (name, attention) in zip(axes, maps.items(), strict=True):
        shown = axis.imshow(attention.cpu().numpy(), cmap="Blues", vmin=0, vmax=brightest, interpolation="nearest")
        axis.set_title(name, fontsize=10)
        places = range(len(attention)) if tokens is not None and len(attention) <= 24 else []
        axis.set_xticks(places, [tokens[place] for place in places] if tokens else [], rotation=90, fontsize=7)
        axis.set_yticks(places, [tokens[place] for place in places] if tokens else [], fontsize=7)
    figure.colorbar(shown, ax=list(axes), shrink=0.8)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "slimformer", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
