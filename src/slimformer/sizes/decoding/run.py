"""The decoding loop as Transformers calls it, with inputs, settings and cache prepared by its own `generate`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from slimformer.errors import ConfigError
from slimformer.sizes.decoding.cache import RowCache
from slimformer.sizes.decoding.forward import Forward, Prompt
from slimformer.sizes.decoding.rows import Rows, Stopping
from slimformer.sizes.decoding.scoring import Scoring
from slimformer.sizes.decoding.speculative import Speculation

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from slimformer.sizes.decoding.draft import Draft, DraftStatistics

#: Settings that have no meaning, or another one, with a draft.
SETTINGS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states", "prefill_chunk_size")
#: What `generate` hands to its decoding loop for a plain decoder.
INPUTS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
#: Attention that takes a mask as it is; others would have to be told of rows at different places in their own way.
ATTENTION = ("eager", "sdpa", "slimformer")


@dataclass
class DraftedOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with `return_dict_in_generate`, and what drafting did."""

    sequences: Any = None
    statistics: DraftStatistics | None = None


@dataclass(frozen=True)
class Decoding:
    """A `custom_generate` of Transformers.

    Args:
        draft: How a smaller size drafts.
        streamer: Gets the tokens as they come, which Transformers does not hand on.
    """

    draft: Draft
    streamer: Any = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: Any,
    ) -> DraftedOutput | Tensor:
        """Write on from the prompts."""
        from slimformer.sizes.elastic import Elastic

        _refuse(model, input_ids, generation_config, inputs)
        if self.streamer is not None and len(input_ids) > 1:
            raise ConfigError(f"a streamer takes one row, and the prompt has {len(input_ids)}; generate row by row")
        scoring = Scoring(logits_processor, bool(generation_config.do_sample))
        stopping = Stopping.of(stopping_criteria, input_ids)
        prompt = Prompt.of(input_ids, generation_config, inputs)
        spare = (self.draft.length or self.draft.longest) + 1
        rows = Rows(input_ids, stopping, spare, _padding(generation_config, stopping, len(input_ids)))
        cache = RowCache(inputs["past_key_values"])
        end = cache.length
        try:
            verifier = Forward(model, rows, cache, prompt)
            with Elastic.of(model).at(self.draft.size):
                drafter = Forward(model, rows, cache, prompt)
            speculation = Speculation(self.draft, verifier, drafter, scoring, self.streamer)
            speculation.run()
            # As after any `generate`, the last token has not been read.
            end = prompt.skipped + int(rows.lengths.max()) - 1
        finally:
            kept = generation_config.return_dict_in_generate or getattr(cache.origin, "_is_user_defined", False)
            past = cache.hand_back(end) if kept else None
        if not generation_config.return_dict_in_generate:
            return rows.finished()
        return DraftedOutput(sequences=rows.finished(), past_key_values=past, statistics=speculation.statistics)


def _refuse(model: Any, prompt: Tensor, settings: Any, inputs: dict[str, Any]) -> None:
    """Refuse, before the first forward, what a draft cannot do as it would be done without."""
    name, mode = type(model).__name__, settings.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(f"the settings ask for {mode.value}, and a draft is for greedy search or sampling; drop one")
    for setting in SETTINGS:
        if getattr(settings, setting, None):
            raise ConfigError(f"`{setting}` is set, which a run with a draft does not have; leave it or the draft out")
    if not {"position_ids", "past_key_values"} <= set(inspect.signature(model.forward).parameters):
        raise ConfigError(f"`{name}` takes no positions, which rows of different lengths need; leave the draft out")
    unknown = [each for each, value in inputs.items() if each not in INPUTS and value is not None]
    if unknown:
        raise ConfigError(f"with a draft, a prompt is tokens alone, and `{unknown[0]}` is given; leave it out")
    if not settings.use_cache or inputs.get("past_key_values") is None:
        raise ConfigError("`use_cache` is off, and a draft is verified on a cache; leave it on, or the draft out")
    if len(prompt) > 1 and model.config._attn_implementation not in ATTENTION:
        raise ConfigError(
            f"rows of different lengths need attention that takes a mask, {' or '.join(ATTENTION[:2])}, and this model "
            f"has `{model.config._attn_implementation}`; set another, or generate row by row"
        )


def _padding(settings: Any, stopping: Stopping, batch: int) -> int:
    """What stands after the end of a row; all rows end together where only their length counts."""
    if settings._pad_token_tensor is not None:
        return int(settings._pad_token_tensor)
    if batch > 1 and (stopping.others or len(stopping.ends)):
        raise ConfigError("rows may end at different places, and there is no `pad_token_id` to fill them up; give one")
    return 0
