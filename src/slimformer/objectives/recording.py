"""What one forward of a model leaves for the terms of an objective to compare.

All terms share a forward: what they need is put together into one request. A model is run only as far as the request
goes: a teacher ends after the block it is needed for, a student that learns relations of its last block ends with the
queries, keys and values there.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from slimformer.anatomy import Anatomy, unwrap
from slimformer.errors import ObjectiveError
from slimformer.models import IGNORED
from slimformer.models.autoencoder import hides_patches, unmasked_features
from slimformer.models.pooling import pool
from slimformer.taps import Taps
from slimformer.views.attention import Scores, goes_through_registry, kept_scores, use_attention

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from slimformer.taps import Name

#: What a forward computed, by name: `2.q` for the queries of block 2, `embeddings`, `logits`, …
Activations = dict[str, Tensor]
#: Inputs that serve a head's own loss alone.
LABELS = ("labels", "start_positions", "end_positions")
#: The last hidden states of the whole input, also of a model that hides a part of it.
FEATURES = "features"
#: Outputs of the head, under the names Transformers gives them.
PREDICTIONS = ("logits", "start_logits", "end_logits")
#: Logits at the positions that have a label alone.
LABELLED_LOGITS = "labelled_logits"


@dataclass(frozen=True)
class Request:
    """What has to be kept of a forward.

    Args:
        blocks: Block number → names of `taps.BlockRecord`, or `mask` for what was added to the scores.
        embeddings: Whether to keep the input of the first block.
        outputs: What the whole model gives: `predictions` of its head, `labelled_logits` of it (computed for no other
            position where nothing else asks for them), its own `loss`, `last_hidden`, or one vector for each text, such
            as `pooled.mean` or `pooled.cls+mean`: ways of `models.sentence`, joined by +. Of a masked autoencoder also
            `patch_mask`, which patches were hidden. `features` is `last_hidden` of all there is to see, whatever a
            masked autoencoder hides otherwise.
    """

    blocks: Mapping[int, frozenset[str]] = field(default_factory=dict)
    embeddings: bool = False
    outputs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, blocks: Iterable[int] = (), names: Iterable[str] = (), *outputs: str) -> Request:
        """The same names of some blocks, and outputs."""
        return cls({block: frozenset(names) for block in blocks}, outputs=frozenset(outputs))

    def __or__(self, other: Request) -> Request:
        blocks = {
            block: self.blocks.get(block, frozenset()) | other.blocks.get(block, frozenset())
            for block in sorted({*self.blocks, *other.blocks})
        }
        return Request(blocks, self.embeddings or other.embeddings, self.outputs | other.outputs)

    @property
    def whole(self) -> bool:
        """Whether nothing but features of the whole input is asked for, so that nothing has to be hidden."""
        return not self.blocks and not self.embeddings and self.outputs == {FEATURES}

    @property
    def names(self) -> tuple[str, ...]:
        """What the activations are called; those of a head depend on the model."""
        of_blocks = [f"{block}.{name}" for block, names in self.blocks.items() for name in sorted(names)]
        return (*of_blocks, *(["embeddings"] if self.embeddings else []), *sorted(self.outputs))


class Recorder:
    """Runs a model and returns what was requested.

    Args:
        model: The model without wrappers.
        request: What to keep.
        read_scores: Take scores from the attention itself, rounding of its operands included, instead of computing
            them again from queries and keys. The model attends by our implementation from now on, if its family can.
    """

    def __init__(self, model: nn.Module, request: Request, *, read_scores: bool = False) -> None:
        self.model = model
        self.anatomy = Anatomy.of(model)
        # A masked autoencoder sees the whole input in a forward of its own, and runs masked for all else.
        self._apart = FEATURES in request.outputs and hides_patches(self.anatomy.config)
        self._whole = self._apart and request.whole
        self.request = replace(request, outputs=request.outputs - {FEATURES}) if self._apart else request
        self._scored = [block for block, names in request.blocks.items() if names & {"scores", "mask"}]
        self._reads = bool(self._scored) and read_scores and goes_through_registry(self.anatomy.blocks[0])
        if self._reads:
            use_attention(model)
        unseen = {"mask", "scores"} if self._reads else {"mask"}
        tapped = {block: names - unseen for block, names in request.blocks.items()}
        self._tapped = cast("dict[int, frozenset[Name]]", {block: names for block, names in tapped.items() if names})

    def __call__(self, inputs: dict[str, Any], call: nn.Module | None = None) -> Activations:
        """Run the model on a batch.

        Args:
            inputs: The batch; labels reach the model only where its own loss is requested.
            call: A wrapper around the model to run in its place, as far as it goes.
        """
        labels: Any = inputs.get("labels")
        inputs = self._prepare(inputs)
        features = self._see_all(inputs, call) if self._apart else {}
        return features if self._whole else {**features, **self._record(inputs, call, labels)}

    def _see_all(self, inputs: dict[str, Any], call: nn.Module | None) -> Activations:
        if call is not None and unwrap(call) is not call:
            raise ObjectiveError(
                f"`{FEATURES}` of a masked autoencoder are computed beside its forward, which `{type(call).__name__}` "
                "would not see; put the student into a `RecordedStudent` first"
            )
        return {FEATURES: unmasked_features(self.anatomy.base, inputs["pixel_values"])}

    def _record(self, inputs: dict[str, Any], call: nn.Module | None, labels: Any) -> Activations:
        with ExitStack() as stack:
            kept = stack.enter_context(kept_scores(self.model, self._scored)) if self._reads else {}
            # New taps for each forward: what they hold is gone with the result.
            taps = stack.enter_context(Taps(self.model, self._tapped, embeddings=self.request.embeddings))
            hidden = any(map(_needs_no_head, self.request.outputs))
            last = stack.enter_context(_last_hidden(self.anatomy.base)) if hidden else []
            if self._narrows:
                stack.enter_context(labelled_alone(self.anatomy.base, labels))
            outputs = self._run(taps, inputs, call)
            activations = self._of_blocks(taps, kept)
        if self.request.embeddings:
            activations["embeddings"] = taps.embeddings
        activations |= self._of_outputs(outputs, last, inputs.get("attention_mask"))
        if LABELLED_LOGITS in self.request.outputs:
            activations[LABELLED_LOGITS] = outputs.logits[0] if self._narrows else outputs.logits[_is_labelled(labels)]
        return activations

    @property
    def _narrows(self) -> bool:
        """Whether the head sees nothing but positions with a label."""
        return LABELLED_LOGITS in self.request.outputs and not self.request.outputs & {"predictions", "loss"}

    def _prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "loss" not in self.request.outputs:
            inputs = {name: value for name, value in inputs.items() if name not in LABELS}
        if self.anatomy.family.causal:
            inputs = {"use_cache": False, **inputs}
        if "pixel_values" in inputs:
            inputs = {**inputs, "pixel_values": inputs["pixel_values"].to(cast("Any", self.anatomy.base).dtype)}
        return inputs

    def _run(self, taps: Taps, inputs: dict[str, Any], call: nn.Module | None) -> Any:
        if call is not None:
            return call(**inputs)
        if not all(map(_needs_no_head, self.request.outputs)):
            return self.model(**inputs)
        if self.request.outputs:
            return self.anatomy.base(**inputs)
        taps.run(**inputs)
        return None

    def _of_blocks(self, taps: Taps, kept: Mapping[int, Scores]) -> Activations:
        activations = {
            f"{block}.{name}": getattr(taps[block], name)
            for block, names in self._tapped.items()
            for name in sorted(names)
        }
        for block in self._scored:
            scores = kept[block] if self._reads else Scores(taps[block].scores, None)
            activations[f"{block}.scores"] = scores.scores
            if "mask" in self.request.blocks[block]:
                mask = scores.mask if self._reads else taps[block].mask
                if mask is not None:
                    activations[f"{block}.mask"] = mask
        return activations

    def _of_outputs(self, outputs: Any, last: list[Tensor], attention_mask: Tensor | None) -> Activations:
        activations: Activations = {}
        if "predictions" in self.request.outputs:
            found = {name: getattr(outputs, name, None) for name in PREDICTIONS}
            activations |= {name: value for name, value in found.items() if value is not None}
        if "loss" in self.request.outputs:
            activations["loss"] = outputs.loss
        if "patch_mask" in self.request.outputs:
            activations["patch_mask"] = outputs.mask
        activations |= {name: last[0] for name in ("last_hidden", FEATURES) if name in self.request.outputs}
        for name in self.request.outputs:
            if name.startswith("pooled."):
                activations[name] = pool(last[0], attention_mask, name.removeprefix("pooled.").split("+"))
        return activations


@contextmanager
def _last_hidden(base: nn.Module) -> Iterator[list[Tensor]]:
    """The last hidden states of a base model that runs inside, whatever head stands around it."""
    kept: list[Tensor] = []
    handle = base.register_forward_hook(lambda _module, _args, output: kept.append(output.last_hidden_state))
    try:
        yield kept
    finally:
        handle.remove()


@contextmanager
def labelled_alone(base: nn.Module, labels: Tensor) -> Iterator[None]:
    """Let the head around a base model see the positions that have a label as one text: [1, labelled, hidden]."""

    def select(_module: nn.Module, _args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[_is_labelled(labels)][None]
        return output

    handle = base.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


def _is_labelled(labels: Tensor) -> Tensor:
    return labels != IGNORED


def _needs_no_head(output: str) -> bool:
    """Whether an output is made of the last hidden states alone."""
    return output in ("last_hidden", FEATURES) or output.startswith("pooled.")
