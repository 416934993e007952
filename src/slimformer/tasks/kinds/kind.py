"""What every kind of task answers for itself, so that nothing elsewhere has to ask for its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from slimformer.errors import DataError
from slimformer.tasks.columns import Columns, check_columns, first_present, given_columns, guess_text, label_names
from slimformer.tasks.features import Collator, Features, padding_collator
from slimformer.tasks.kinds.answers import CLASSES, Snippet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PretrainedConfig

    from slimformer.models.sentence import SentenceSettings
    from slimformer.tasks.metrics import ClassScores
    from slimformer.tasks.preset import ReaderName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Gives a label as the file spells it the name it bears in the task.
Rename: TypeAlias = Callable[[str], str]
#: Arrays by name: NumPy's or torch's, a kind treats both alike.
Arrays: TypeAlias = Mapping[str, Any]

#: An answer as JSON types.
Answer: TypeAlias = dict[str, Any]

#: What Transformers calls a head whose outputs are judged one by one.
MULTI_LABEL = "multi_label_classification"


class Kind(ABC):
    """One kind of task: its files, its head, its inputs, its outputs, its metrics and its answers.

    A kind is registered by one line of `slimformer.registry.KINDS`; a generic task of the same name comes with it.

    Args:
        settings: What a preset, a user or the model tells the kind; see `choices`.
    """

    #: What presets call the kind.
    name: ClassVar[str]
    #: What can be measured, the one that chooses between models first.
    metrics: ClassVar[tuple[str, ...]]
    #: The Transformers class whose head fits.
    head: str
    #: What the Hub calls models with this head.
    pipeline_tag: str | None = None

    #: Whether the inputs are texts or images.
    modality: ClassVar[Literal["texts", "images"]] = "texts"
    #: Tokens a text is cut to in the generic task; pixels a side for images.
    max_length: ClassVar[int] = 128
    #: Whether there is a list of labels.
    labelled: ClassVar[bool] = True
    #: Whether the outputs of an item exclude each other, so that together they are probabilities.
    exclusive: ClassVar[bool] = True
    #: Whether `logits` are one number for each class to choose from, so that a model can be more or less sure.
    chooses: ClassVar[bool] = False
    #: How many labels there have to be.
    least_labels: ClassVar[int] = 2
    #: Whether rows are running text, which is cut and sampled in order.
    in_order: ClassVar[bool] = False
    #: Why a method that needs a head cannot train it, as the rest of a sentence that begins with the task.
    untrainable: ClassVar[str | None] = None
    #: Whether the head is that of pretraining, which fits whatever the text is and goes by several names.
    pretraining: ClassVar[bool] = False
    #: Terms of an objective, with their options: the task's own loss, and learning what another model answers.
    loss_term: str = "labels"
    teaching_term: str = "logits"
    #: Whether only a decoder can do it.
    needs_decoder: ClassVar[bool] = False
    #: Whether the outputs are embeddings of the model without a head.
    embeds: ClassVar[bool] = False
    #: Items of a row, the first of all rows before the second of any; 0 where a row does not count by itself.
    items_of_row: ClassVar[int] = 1
    #: Axes of the inputs that may have any length, in order.
    axes: ClassVar[tuple[str, ...]] = ("batch", "length")
    #: Outputs of a model that `outputs` reads.
    reads: ClassVar[tuple[str, ...]] = ("logits",)
    #: How an exported model is asked without slimformer.
    snippet: Snippet = CLASSES
    #: Inputs that only serve the head's own loss.
    targets: ClassVar[tuple[str, ...]] = ("labels",)
    #: What a linear model on embeddings would predict; None where it could not.
    linear_probe: ClassVar[Literal["classes", "numbers"] | None] = None
    #: Ending of a file whose content is ambiguous → reader.
    readers: ClassVar[Mapping[str, ReaderName]] = {".txt": "tsv"}
    #: Names of what a request holds, in the order of the text columns.
    fields: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    #: What a request looks like.
    request: ClassVar[str] = 'a text, a pair of texts, or {"text": …, "text_pair": …}'
    #: Tokens that a model generates for a request at most; 0 where nothing is generated.
    new_tokens: int = 0
    #: Setting → the values it may have, None for any; what is not listed cannot be set.
    choices: ClassVar[Mapping[str, tuple[str, ...] | None]] = {}

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = dict(settings or {})

    def with_settings(self, **settings: Any) -> Self:
        """The kind with some settings changed."""
        return type(self)({**self.settings, **settings})

    # Which model fits.

    @classmethod
    def owns(cls, architecture: str) -> bool:
        """Whether a class of Transformers has the head of this kind."""
        ending = cls.head.removeprefix("AutoModel")
        return bool(ending) and architecture.endswith(ending)

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """The kind that a model was trained for, if it is this one, as far as its class and config tell."""
        return cls() if cls.owns(architecture) else None

    @classmethod
    def accepts(cls, architecture: str, classes: Sequence[str]) -> bool:
        """Whether a checkpoint of a class has the head that other classes have, some name of it being among them."""
        return architecture in classes

    def for_model(self, *, causal: bool, sentence: SentenceSettings | None = None) -> Self:
        """The kind with whatever follows from the model.

        Args:
            causal: Whether the model is a decoder.
            sentence: How the model's outputs become one vector, where that is recorded.
        """
        return self

    def head_fits(self, config: PretrainedConfig, labels: Sequence[str] | None) -> bool:
        """Whether a head of the right class was trained for these labels, as far as its config tells."""
        if not self.means_the_same(config):
            return False
        return labels is None or (config.num_labels == len(labels) and label_names(config) in (None, list(labels)))

    def means_the_same(self, config: PretrainedConfig) -> bool:
        """Whether the outputs of a head of the right class mean what they mean here."""
        return getattr(config, "problem_type", None) != MULTI_LABEL

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the model's config has to be told."""
        if labels is None:
            return {}
        return {
            "num_labels": len(labels),
            "id2label": dict(enumerate(labels)),
            "label2id": {label: index for index, label in enumerate(labels)},
        }

    def rows(self, example: Example) -> int:
        """Texts that an example makes the model read."""
        return 1

    # From files to examples.

    def columns(self, rows: SplitRows, text: str | Sequence[str] | None, label: str | None) -> Columns:
        """Which columns to read: those given, those of the layout, or those there is no doubt about."""
        layout = rows.layout
        label_column = label or (first_present(layout.label, rows) if layout else self.guess_label(rows))
        if label_column is not None:
            check_columns([label_column], rows, "choose with label_column")
        texts = given_columns(text, rows.columns) or (layout.text if layout else self.guess_text(rows, label_column))
        check_columns(texts, rows, "choose with text_column")
        choices = layout.choices if layout else self.guess_choices(rows, label_column)
        check_columns(choices, rows, "give a file that has it")
        return Columns(texts, label_column, choices, join_text=layout is not None and layout.join_text)

    def guess_text(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The text columns of somebody's own file."""
        return guess_text(rows, label)

    def guess_label(self, rows: SplitRows) -> str | None:
        """The label column of somebody's own file."""
        return None

    def guess_choices(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The columns of the choices in somebody's own file."""
        return ()

    def reader_options(self, label: str | None) -> tuple[dict[str, Any], str | None]:
        """What a label column means to the reader of somebody's own annotated files, and the column that is left."""
        return {}, label

    def group(self, columns: Columns) -> tuple[str, ...]:
        """The columns whose equal values keep rows together when a file is divided."""
        return columns.text

    def look_at(self, rows: Iterable[tuple[Row, Columns]]) -> Self:
        """The kind with whatever has to be known of all rows before the first is parsed."""
        return self

    @abstractmethod
    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """The examples of a row, with labels as text; whatever is wrong with the row is an error here."""

    def labels_of(self, example: Example) -> Iterable[Any]:
        """The labels of an example: as text, or as numbers once `with_ids` has put them in."""
        return (example["label"],)

    def with_ids(self, example: Example, ids: Mapping[str, int]) -> Example:
        """The example with labels as numbers."""
        return {**example, "label": ids[example["label"]]}

    # From examples to batches.

    @abstractmethod
    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """The inputs of a split."""

    def training_features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """The inputs of a split that is trained on."""
        return self.features(split, processor, max_length, seed)

    def collator(self, processor: Any) -> Collator:
        """What makes batches of inputs."""
        return padding_collator(processor)

    def items(self, batch: Arrays) -> int:
        """What the loss of a batch is a mean over: examples, unless the kind says otherwise."""
        return len(next(iter(batch.values())))

    # From outputs to metrics.

    def outputs(self, outputs: Arrays, batch: Arrays) -> dict[str, Any]:
        """What metrics and answers need of a model's outputs for a batch, one entry for each item.

        Args:
            outputs: What the model gave, by name.
            batch: The batch it gave that for, with its labels where there are any.
        """
        return {"logits": outputs["logits"]}

    def metric_names(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """What is measured unless the preset says otherwise."""
        return self.metrics

    @abstractmethod
    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Measure a model's outputs."""

    def by_class(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None
    ) -> ClassScores | None:
        """What a model gets right label by label; None where there are no labels to tell apart."""
        return None

    # From requests to answers.

    @abstractmethod
    def encode(self, request: Any) -> Example:
        """The example that a request stands for, with any label; a request of another form is a `DataError`."""

    def inputs(self, split: Split, processor: Any, max_length: int) -> Features:
        """The inputs of requests, which have no labels."""
        features = self.features(split, processor, max_length, 0)
        items = [
            {name: value for name, value in features[index].items() if name not in self.targets}
            for index in range(len(features))
        ]
        return Features(items, features.extra)

    def request_collator(self, processor: Any) -> Collator:
        """What makes batches of the inputs of requests."""
        return self.collator(processor)

    @abstractmethod
    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The answers to requests, in their order, as JSON types.

        Args:
            split: The examples that `encode` gave.
            features: What `inputs` gave for them.
            outputs: What `outputs` left of the model's outputs, in the order of the features.
            labels: The labels in the order of the head.
            processor: Tokenizer or image processor.
        """

    @abstractmethod
    def line(self, answer: Answer) -> str:
        """An answer as people read it, in one line."""

    def unfit(self, request: Any) -> DataError:
        """The error for a request of another form."""
        text = repr(request) if isinstance(request, str) else str(request)
        return DataError(f"a request for {self.name} reads `{text[:60]}`; give {self.request}")
