"""Texts and images judged by the embeddings of a model without a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from slimformer.errors import DataError
from slimformer.models.names import sees_images
from slimformer.models.pooling import normalize, pool
from slimformer.models.sentence import SentenceSettings
from slimformer.tasks.columns import LABELS, SCORES, Columns, guess_one, label_text
from slimformer.tasks.features import Features, PairCollator, StackingCollator, draw_partners, pair
from slimformer.tasks.kinds.answers import Snippet
from slimformer.tasks.kinds.image_classification import ImageKind
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.regression import number
from slimformer.tasks.kinds.texts import text_features, text_of, texts_in, texts_of
from slimformer.tasks.metrics import leave_one_out, one_nearest_neighbour, regression_metrics
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.features import Collator
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example

#: Numbers of a vector that a person is shown.
SHOWN = 6


#: Ways of pooling in NumPy, of hidden states and a mask, [items, length, 1], with padding on the right.
POOLED = {
    "cls": "hidden[:, 0]",
    "max": "np.where(mask, hidden, -np.inf).max(1)",
    "mean": "(hidden * mask).sum(1) / mask.sum(1)",
    "mean_sqrt_len_tokens": "(hidden * mask).sum(1) / np.sqrt(mask.sum(1))",
    "weightedmean": "(hidden * mask * mask.cumsum(1)).sum(1) / (mask * mask.cumsum(1)).sum(1)",
    "lasttoken": "hidden[np.arange(len(hidden)), mask[..., 0].sum(1) - 1]",
}


def _snippet(sentence: SentenceSettings) -> Snippet:
    """How vectors are made of hidden states."""
    ways = [POOLED[way] for way in sentence.pooling]
    scaled = ["vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)"] if sentence.normalize else []
    lines = (
        'hidden = outputs["last_hidden_state"]',
        'mask = feed.get("attention_mask", np.ones(hidden.shape[:2], int))[..., None]',
        f"vectors = {ways[0]}" if len(ways) == 1 else f"vectors = np.concatenate([{', '.join(ways)}], -1)",
        *scaled,
        "print(vectors)",
    )
    return Snippet(lines, '[about["prompt"] + text for text in ("a fine film", "two hours of my life")]')


class Embedding(Kind):
    """Measuring the embeddings of a bare model, and training them on items that belong together."""

    head = "AutoModel"
    embeds = True
    items_of_row = 0  # one that is there twice would be its own neighbour
    reads = ("last_hidden_state",)
    labelled = False
    untrainable = (
        "has no head to train: it is about the embeddings of a bare encoder; train them with `slimformer finetune` or "
        "`slimformer elastic`, or train on `classification`"
    )
    request = 'a text, or {"text": …}'
    #: The term that trains them.
    term: ClassVar[str] = "contrastive"

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        pooling = "+".join(self.sentence.pooling)
        self.snippet = _snippet(self.sentence)
        self.loss_term, self.teaching_term = f"{self.term}[{pooling}]", f"pooled[{pooling}]"

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A model without a head, for texts or for images as the kind is."""
        if architecture and (not architecture.endswith("Model") or "LMHead" in architecture):
            return None
        images = config is not None and sees_images(config)
        return cls() if images == (cls.modality == "images") else None

    def for_model(self, *, causal: bool, sentence: SentenceSettings | None = None) -> Self:
        """With the model's own way of pooling."""
        return self if sentence is None else self.with_settings(sentence=sentence)

    @property
    def sentence(self) -> SentenceSettings:
        """How outputs become one vector: as recorded with the model, or their mean."""
        return self.settings.get("sentence") or SentenceSettings()

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """Nothing: there is no head."""
        return {}

    def training_features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Every item together with another of its label, drawn anew each epoch."""
        labels = [example["label"] for example in split]
        return draw_partners(self.inputs(split, processor, max_length), labels, seed, split.origins[0][0])

    def collator(self, processor: Any) -> Collator:
        """Batches of items; those of pairs with all second ones after all first ones."""
        return PairCollator(super().collator(processor))

    def outputs(self, outputs: Arrays, batch: Arrays) -> dict[str, Any]:
        """One vector for each item."""
        hidden = outputs["last_hidden_state"]
        return {"embeddings": pool(hidden, batch.get("attention_mask"), self.sentence.pooling)}

    def encode(self, request: Any) -> Example:
        """A text."""
        example = texts_in(self, request)
        if "text_pair" in example:
            raise self.unfit(request)
        return {"text": example["text"], "label": 0}

    def inputs(self, split: Split, processor: Any, max_length: int) -> Features:
        """Tokenise the texts, with the prompt that the encoder puts before each; a bare encoder takes no labels."""
        if self.sentence.prompt and not self.sentence.include_prompt:
            raise DataError(
                "the sentence encoder leaves its prompt out of the pooling, which is not supported; set "
                "`include_prompt` in 1_Pooling/config.json, or take `default_prompt_name` out of "
                "config_sentence_transformers.json"
            )
        texts = [{"text": self.sentence.prompt + example["text"]} for example in split]
        return text_features(Split(texts, split.origins), processor, max_length, label=False)

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The vector."""
        vectors = np.asarray(outputs["embeddings"])
        vectors = normalize(vectors) if self.sentence.normalize else vectors
        return [{"embedding": vector} for vector in vectors.tolist()]

    def line(self, answer: Answer) -> str:
        """Its first few numbers."""
        vector = answer["embedding"]
        more = ", …" if len(vector) > SHOWN else ""
        return f"[{', '.join(f'{value:.4f}' for value in vector[:SHOWN])}{more}] ({len(vector)} numbers)"


class Retrieval(Embedding):
    """Labelled texts, or pairs of texts that belong together.

    A pair becomes two items that share a label of their own, so both are measured alike: an item counts as
    right when its nearest neighbour among the others of its split bears its label. Predictions are embeddings;
    `against_database` looks a split up in another one instead.
    """

    name = "retrieval"
    pipeline_tag = "feature-extraction"
    metrics = ("one_nearest_neighbour",)

    def guess_label(self, rows: SplitRows) -> str | None:
        """The label column; none in a file of pairs."""
        return guess_one(rows, LABELS, "label") if any(name.lower() in LABELS for name in rows.columns) else None

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One labelled item, or the two of a pair."""
        texts = [text_of(row, column) for column in columns.text]
        if len(texts) == 1 and columns.label is None:
            raise DataError(
                f"{row.at()}: one text column and no label; name the label with label_column or two text columns"
            )
        label = (
            f"{row.file}:{row.line}"
            if columns.label is None
            else rename(label_text(row.values[columns.label], row, columns.label))
        )
        return [{"text": text, "label": label} for text in texts]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the items, as those of requests."""
        return self.inputs(split, processor, max_length)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Look every item up."""
        truth = np.array([example["label"] for example in split])
        return {"one_nearest_neighbour": leave_one_out(np.asarray(predictions), truth)}


class Similarity(Embedding):
    """How well the cosine of two texts' embeddings orders the pairs as people do.

    The features hold the first text of every pair and then every second one.
    """

    name = "similarity"
    items_of_row = 2
    term = "ranked-pairs"
    pipeline_tag = "sentence-similarity"
    metrics = ("spearman", "pearson")

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the number."""
        return guess_one(rows, SCORES, "number")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example with two texts."""
        if len(columns.text) != 2:
            raise DataError(
                f"{row.at()}: similarity is between two texts, and the text columns are `{', '.join(columns.text)}`; "
                "name two with text_column"
            )
        assert columns.label is not None
        return [{**texts_of(row, columns), "label": number(row.values[columns.label], row, columns.label)}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise all texts one by one."""
        sides = [Split([{"text": example[side]} for example in split], split.origins) for side in ("text", "text_pair")]
        return Features([item for side in sides for item in self.inputs(side, processor, max_length)])

    def training_features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Every pair with its number."""
        items = self.features(split, processor, max_length, seed)
        halves = zip(items[: len(split)], items[len(split) :], split, strict=True)
        return Features([pair(first, second, float(example["label"])) for first, second, example in halves])

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare the cosines with the truth."""
        unit = normalize(np.asarray(predictions, dtype=np.float64))
        first, second = unit[: len(split)], unit[len(split) :]
        truth = np.array([example["label"] for example in split])
        return regression_metrics(truth, (first * second).sum(axis=1), metrics)


class ImageRetrieval(ImageKind, Embedding):
    """Labelled images; one counts as right when its nearest neighbour among the others bears its label."""

    name = "image-retrieval"
    pipeline_tag = "image-feature-extraction"
    metrics = ("one_nearest_neighbour",)

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Items that read and scale their image when asked for; a bare encoder takes no labels."""
        return self.inputs(split, processor, max_length)

    def collator(self, processor: Any) -> Collator:
        """Stacks images; those of pairs with all second ones after all first ones."""
        return PairCollator(StackingCollator())

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Look every item up."""
        truth = np.array([example["label"] for example in split])
        return {"one_nearest_neighbour": leave_one_out(np.asarray(predictions), truth)}


def against_database(database: Split, embeddings: Any, split: Split, queries: Any) -> float:
    """Share of a split's items whose nearest neighbour in another split bears their label."""
    return one_nearest_neighbour(
        embeddings, [item["label"] for item in database], queries, [item["label"] for item in split]
    )
