"""Predicting tokens of text: running text from the left or under a mask, or the last word of a passage."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from slimformer.errors import DataError
from slimformer.models import IGNORED
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features, PaddingCollator, counted_tokens, padding_collator
from slimformer.tasks.kinds.answers import Snippet, likeliest
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import check_length, need_fast, text_of, texts_in
from slimformer.tasks.masking import TokenMasking
from slimformer.tasks.metrics import likelihood_metrics, reduce_logits
from slimformer.tasks.readers.text import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from slimformer.models.sentence import SentenceSettings
    from slimformer.tasks.columns import Columns
    from slimformer.tasks.preset import ReaderName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

    Ids = np.ndarray[Any, np.dtype[np.int32]]

Objective = Literal["causal", "masked"]
#: Tokens that a decoder adds to a request unless told otherwise.
NEW_TOKENS = 64
#: Tokens that are proposed for a mask.
CANDIDATES = 5


class LanguageModelling(Kind):
    """Language modelling on text packed into blocks of `max_length` tokens.

    The lines of a text file are one document; the rows of a table are a document each. Documents follow one
    another in the blocks, with the tokenizer's end (or separator) token after each. The last block may be shorter.

    Under the objective `masked` each block is wrapped in the tokenizer's special tokens, and an item's masks
    are a pure function of (seed, epoch, index): the trainer says `features.set_epoch(n)` when epoch n begins, and a
    resumed run sees what an uninterrupted one would.

    Asked, a decoder goes on with a text, and an encoder proposes words for its masks.
    """

    name = "language-modelling"
    head = "AutoModelForCausalLM"
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "loss", "accuracy")
    labelled = False
    snippet = Snippet(('print([[tokenizer.id_to_token(i) for i in row] for row in outputs["logits"].argmax(-1)])',))
    in_order = True
    pretraining = True
    max_length = 256
    targets = ("labels", "places")
    readers: ClassVar[Mapping[str, ReaderName]] = {".txt": "text"}
    choices: ClassVar[Mapping[str, tuple[str, ...] | None]] = {
        "objective": ("causal", "masked"),
        "max_new_tokens": None,
    }
    fields = ("text",)
    request = 'a text, or {"text": …}'

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self.objective: Objective = "masked" if self.settings.get("objective") == "masked" else "causal"
        causal = self.objective == "causal"
        self.head = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
        self.pipeline_tag = "text-generation" if causal else "fill-mask"
        self.new_tokens = int(self.settings.get("max_new_tokens") or NEW_TOKENS) if causal else 0

    @classmethod
    def owns(cls, architecture: str) -> bool:
        """Whether a class has a head of pretraining on text."""
        return architecture.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel"))

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head of pretraining; that of BERT holds one for masks among others."""
        if cls.owns(architecture):
            return cls({"objective": "masked" if architecture.endswith("ForMaskedLM") else "causal"})
        image = config is None or hasattr(config, "patch_size")
        return cls({"objective": "masked"}) if architecture.endswith("ForPreTraining") and not image else None

    @classmethod
    def accepts(cls, architecture: str, classes: Sequence[str]) -> bool:
        """BERT's head of pretraining holds the one for masks."""
        return architecture in classes or architecture.endswith("ForPreTraining")

    def for_model(self, *, causal: bool, sentence: SentenceSettings | None = None) -> Self:
        """The objective follows from the model."""
        return self.with_settings(objective="causal" if causal else "masked")

    def head_fits(self, config: PretrainedConfig, labels: Sequence[str] | None) -> bool:
        """Whatever the text is, the head of pretraining fits."""
        return True

    def guess_text(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """One column of text."""
        return super().guess_text(rows, label)[:1]

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One line of a document, or one document."""
        value = row.values[columns.text[0]]
        if not isinstance(value, str):
            raise DataError(f"{row.at()}: column `{columns.text[0]}` holds `{value}` and no text; mend the row")
        document = row.values.get(DOCUMENT, f"{row.file}:{row.line}")
        return [{"text": value, "document": document}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise documents and cut them into blocks."""
        check_length(processor, max_length)
        masked = self.objective == "masked"
        if masked:
            _need_mask(processor)
        blocks = list(_blocks(split, processor, max_length, masked=masked))
        if not blocks:
            raise DataError(f"{split.at(0)}: the text gives fewer than two tokens; give more text")
        inputs = [{"input_ids": block, "attention_mask": np.ones_like(block)} for block in blocks]
        if masked:
            return Features(inputs, transform=TokenMasking.of(processor, seed))
        return Features([{**item, "labels": item["input_ids"]} for item in inputs])

    def items(self, batch: Arrays) -> int:
        """Tokens that are predicted."""
        return counted_tokens(batch, shifted=self.objective == "causal")

    def outputs(self, outputs: Arrays, batch: Arrays) -> dict[str, Any]:
        """Three numbers an item where tokens are predicted, the likeliest tokens where masks are filled."""
        if "sequences" in outputs:
            return {"sequences": outputs["sequences"]}
        if "places" in batch:
            return likeliest(outputs["logits"], batch["places"], CANDIDATES)
        return {"likelihoods": reduce_logits(outputs["logits"], batch["labels"], causal=self.objective == "causal")}

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Likelihood of the tokens; predictions are what `outputs` left of the logits."""
        return likelihood_metrics(predictions, metrics)

    def encode(self, request: Any) -> Example:
        """A text to go on with, or one with masks."""
        example = texts_in(self, request)
        if "text_pair" in example:
            raise self.unfit(request)
        return example

    def inputs(self, split: Split, processor: Any, max_length: int) -> Features:
        """The tokens of each text: the last ones that leave room for what is added, or all with their masks."""
        encoder, texts = TextEncoder(processor), [example["text"] for example in split]
        if self.new_tokens:
            room, special = max(1, max_length - self.new_tokens), set(processor.all_special_ids)
            return Features([_prompt(item["input_ids"], special, room) for item in encoder.inputs(texts)])
        _need_mask(processor)
        items = []
        for index, item in enumerate(encoder.inputs(texts, None, max_length)):
            places = (item["input_ids"] == processor.mask_token_id).astype(np.int32)
            if not places.any():
                raise DataError(
                    f"{split.at(index)}: the text has no `{processor.mask_token}` to be filled; put one in, or ask for "
                    "vectors with task `retrieval`"
                )
            items.append({**item, "places": places})
        return Features(items)

    def request_collator(self, processor: Any) -> PaddingCollator:
        """Pads on the left where tokens are added on the right."""
        return padding_collator(processor, side="left" if self.new_tokens else None)

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The text that follows, or the candidates for each mask."""
        if self.new_tokens:
            rows = [[int(token) for token in row if token >= 0] for row in outputs["sequences"]]
            return [{"text": processor.decode(row, skip_special_tokens=True)} for row in rows]
        answers = []
        for tokens, shares in zip(outputs["tokens"], outputs["shares"], strict=True):
            fills = [
                [
                    {"token": processor.decode([int(token)]).strip(), "probability": float(share)}
                    for token, share in zip(row, each, strict=True)
                ]
                for row, each in zip(tokens, shares, strict=True)
                if row[0] >= 0
            ]
            answers.append({"fills": fills})
        return answers

    def line(self, answer: Answer) -> str:
        """The text on one line, or the candidates."""
        if "text" in answer:
            return " ".join(answer["text"].split())
        fills = (", ".join(f"{each['token']} {each['probability']:.4f}" for each in fill) for fill in answer["fills"])
        return " | ".join(fills)


class LastWord(LanguageModelling):
    """The last word of a passage, as LAMBADA asks for; right when every token of the word is the likeliest."""

    name = "last-word"
    metrics = ("last_word_accuracy", "perplexity", "loss")
    in_order = False
    needs_decoder = True
    choices: ClassVar[Mapping[str, tuple[str, ...] | None]] = {"max_new_tokens": None}

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A decoder is one for running text first."""
        return None

    def for_model(self, *, causal: bool, sentence: SentenceSettings | None = None) -> Self:
        """It is a decoder, or it is refused."""
        return self

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One passage of at least two words."""
        text = text_of(row, columns.text[0])
        if len(text.split()) < 2:
            raise DataError(f"{row.at()}: `{text}` is one word; a passage needs a context and a last word")
        return [{"text": text, "word": text.split()[-1]}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise passages, keeping their ends where they are too long; only the last word has labels."""
        need_fast(processor, "last-word prediction")
        check_length(processor, max_length)
        inputs, special = [], set(processor.all_special_ids)
        encodings = TextEncoder(processor).encodings([example["text"] for example in split])
        for example, encoding in zip(split, encodings, strict=True):
            ids = np.array(encoding.ids, np.int32)
            ends = np.array([end for _, end in encoding.offsets])
            labels = np.where(ends > len(example["text"]) - len(example["word"]), ids, IGNORED).astype(np.int32)
            # Special tokens that a tokenizer put after the word are left out.
            end = int(np.flatnonzero(labels != IGNORED)[-1]) + 1
            kept = _last(ids[:end], special, max_length)
            ids, labels = ids[kept], labels[kept]
            inputs.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels})
        return Features(inputs)


def _documents(split: Split) -> Iterator[str]:
    for _, lines in groupby(split, key=lambda example: example["document"]):
        yield "\n".join(line["text"] for line in lines)


def _blocks(split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, *, masked: bool) -> Iterator[Ids]:
    """Blocks of tokens; a masked block has its special tokens around it."""
    opening, closing = _around(tokenizer) if masked else ([], [])
    room = max_length - len(opening) - len(closing)
    parting = tokenizer.sep_token_id if masked else tokenizer.eos_token_id
    stream: list[int] = []
    for ids in TextEncoder(tokenizer).ids(list(_documents(split)), special_tokens=not masked):
        stream += ids
        if parting is not None and (not ids or ids[-1] != parting):
            stream.append(parting)
    for begin in range(0, len(stream), room):
        block = stream[begin : begin + room]
        if len(block) > 1:
            yield np.array([*opening, *block, *closing], np.int32)


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    opening = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    closing = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    return ([] if opening is None else [opening]), ([] if closing is None else [closing])


def _need_mask(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.mask_token_id is None:
        raise DataError(f"`{type(tokenizer).__name__}` has no mask token; use the objective `causal`")


def _prompt(ids: Ids, special: set[int], room: int) -> dict[str, Ids]:
    """The last tokens of a text, without special tokens that a tokenizer puts after it."""
    end = len(ids)
    while end > 1 and int(ids[end - 1]) in special:
        end -= 1
    kept = ids[:end][_last(ids[:end], special, room)]
    return {"input_ids": kept, "attention_mask": np.ones_like(kept)}


def _last(ids: Ids, special: set[int], room: int) -> NDArray[np.int64]:
    """Places of the last tokens of a text; those that begin it, such as BOS, stay, as the model was trained with."""
    begin = 0
    while begin < min(len(ids), room) - 1 and int(ids[begin]) in special:
        begin += 1
    places = np.arange(len(ids))
    return places[(places < begin) | (places >= len(ids) - room + begin)]
