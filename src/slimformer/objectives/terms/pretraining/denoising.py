"""Sentence embeddings from which a text can be told again: TSDAE (arXiv 2104.06979)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from slimformer.errors import ConfigError
from slimformer.models import IGNORED
from slimformer.models.denoising import decode, has_decoder
from slimformer.objectives.recording import Request, labelled_alone
from slimformer.objectives.terms.language import Reconstruction
from slimformer.objectives.terms.pooled import Pooled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from slimformer.objectives.recording import Activations


class Denoising(Reconstruction):
    """A text from the embedding of what is left of it: every token from that vector and the tokens before it.

    TSDAE (arXiv 2104.06979). Like the reconstruction, a mean over the tokens of a text and then over texts.
    The masked copy of a batch is what is left of each text, and its `labels` are the text as it was.
    """

    class Options(Pooled.Options):
        """How what is left becomes one vector."""

    positional = "pooling"
    part = "denoising"

    def check(self) -> None:
        """Refuse what has no decoder, and embeddings wider than what it attends to."""
        super().check()
        student = self.models.student
        if not has_decoder(student.config):
            raise ConfigError(
                f"`denoising` decodes an embedding, and a `{type(student.model).__name__}` has no decoder for it; make "
                "a model with `as_denoiser`, or leave it out"
            )
        if "+" in self.options.pooling:
            raise ConfigError(
                f"`denoising` decodes one vector as wide as the model, and the pooling is `{self.options.pooling}`; "
                "give one way of pooling"
            )
        self.own_head = False
        self.name = f"pooled.{self.options.pooling}"

    def student_request(self) -> Request:
        """The embedding of what is left."""
        return Request(outputs=frozenset({self.name}))

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """Logits of all tokens but the first."""
        student = self.models.student
        model = cast("Any", student.model)
        labels, chosen = self.targets(inputs)
        tokens = inputs["labels"][:, :-1].masked_fill(~chosen, model.config.pad_token_id or 0)
        with labelled_alone(student.base, labels):
            return {"token_logits": decode(model, activations[self.name], tokens)[0]}

    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The tokens after each position, where there is one."""
        labels: Tensor = inputs["labels"][:, 1:]
        return labels, labels != IGNORED
