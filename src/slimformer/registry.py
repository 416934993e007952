"""Everything that can be chosen by name, and where it lives.

A method, a distillation term, a number format, a task kind or a way of storing is registered by one line here: its
name, the dotted path of the object and a line of help. Reading the registry imports nothing of what it names, so it
costs nothing and stands below every layer. Packages outside register through the entry point group of a registry.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from slimformer.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One name of a registry.

    Args:
        target: Where the object lives, `package.module:attribute`.
        help: What it is, in one line.
    """

    target: str
    help: str = ""

    def load(self) -> Any:
        """Import the module and return the object."""
        module, _, attribute = self.target.partition(":")
        value: Any = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
        return value


class Registry(Generic[T]):
    """Names of one sort of thing, each imported when it is first asked for.

    Args:
        noun: What an entry is called in messages, such as `method`.
        entries: Those of slimformer itself: name → (target, help).
        group: The entry point group of other packages' entries; the noun's plural unless given.
    """

    def __init__(self, noun: str, entries: Mapping[str, tuple[str, str]], group: str | None = None) -> None:
        self.noun = noun
        self.group = group or f"slimformer.{noun}s"
        self._own = {name: Entry(*entry) for name, entry in entries.items()}
        self._added: dict[str, tuple[T, str]] = {}

    @cached_property
    def _installed(self) -> dict[str, Entry]:
        """What installed packages register; a name of slimformer's own cannot be taken over."""
        return {
            entry.name: Entry(entry.value, f"From the package `{entry.dist.name if entry.dist else entry.module}`.")
            for entry in entry_points(group=self.group)
            if entry.name not in self._own
        }

    @property
    def own(self) -> tuple[str, ...]:
        """Names of slimformer's own entries; other packages are not looked for."""
        return tuple(self._own)

    @property
    def names(self) -> tuple[str, ...]:
        """All names: slimformer's own in their order, then those of other packages, then those added here."""
        return tuple(dict.fromkeys([*self._own, *self._installed, *self._added]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added or name in self._installed

    def help(self, name: str) -> str:
        """The line of help; nothing is imported for it."""
        return self._added[name][1] if name in self._added else self._entry(name).help

    def target(self, name: str) -> str:
        """Where an entry lives, `package.module:attribute`; nothing is imported."""
        return self._entry(name).target

    def get(self, name: str) -> T:
        """The object of that name, imported now if need be."""
        if name in self._added:
            return self._added[name][0]
        entry = self._entry(name)
        try:
            return cast("T", entry.load())
        except (ImportError, AttributeError) as error:
            if name in self._own:
                raise
            raise RegistryError(
                f"the {self.noun} `{name}` of another package cannot be loaded from `{entry.target}`: {error}; "
                "mend or remove that package"
            ) from error

    def add(self, name: str, value: T, help: str = "") -> None:
        """Register an object of this process, such as one defined in a script or a test."""
        if name in self:
            raise RegistryError(f"there is a {self.noun} `{name}` already; choose another name")
        self._added[name] = (value, help)

    def remove(self, name: str) -> None:
        """Take out what `add` put in."""
        if name not in self._added:
            raise RegistryError(f"no {self.noun} `{name}` was added here; only those added can be removed")
        del self._added[name]

    def _entry(self, name: str) -> Entry:
        entry = self._own.get(name) or self._installed.get(name)
        if entry is None:
            near = difflib.get_close_matches(name, self.names, n=1)
            hint = f" (do you mean `{near[0]}`?)" if near else ""
            raise RegistryError(f"there is no {self.noun} `{name}`{hint}; known: {', '.join(self.names)}")
        return entry


#: Methods: each is a command, a Python function and a step of an artifact; see `slimformer.methods.method`.
METHODS: Registry[Any] = Registry(
    "method",
    {
        "finetune": ("slimformer.methods.finetune.method:Finetune", "Fine-tune a model on a task."),
        "distill": (
            "slimformer.methods.distill.method:Distill",
            "Distil a teacher into a small student, without labels.",
        ),
        "mask": ("slimformer.methods.mask.method:Mask", "Learn one bit per weight for a task, on top of a base."),
        "quantize": (
            "slimformer.methods.quantize.method:Quantize",
            "Train a model on with a few levels per weight, taught by its float self.",
        ),
        "elastic": (
            "slimformer.methods.elastic.method:Elastic",
            "Train one model whose nested sizes all work.",
        ),
        "adapt": (
            "slimformer.methods.adapt.method:Adapt",
            "Pre-train a model further on a domain, distilled from itself.",
        ),
        "trim": ("slimformer.methods.trim.method:Trim", "Drop the word pieces that a domain does not use."),
    },
)

#: Commands that are no methods.
COMMANDS: Registry[Any] = Registry(
    "command",
    {
        "merge": ("slimformer.cli.artifacts:merge_mask", "Turn a mask and its base into a plain checkpoint."),
        "extract": (
            "slimformer.cli.artifacts:extract_size",
            "Write one size of an elastic model, or the largest within a budget, as a model of its own.",
        ),
        "export": ("slimformer.cli.export:export_model", "Write a model as an ONNX file, and compare the two."),
        "evaluate": (
            "slimformer.cli.evaluate:evaluate_model",
            "Measure an artifact on a task, by default the one it was trained for.",
        ),
        "predict": (
            "slimformer.cli.predict:predict_requests",
            "Answer texts with a model: labels, numbers, tags, spans, vectors or text.",
        ),
        "route": (
            "slimformer.cli.route:make_route",
            "Say which size of an elastic model answers which request, by confidence or latency.",
        ),
        "bench": (
            "slimformer.cli.bench:bench_models",
            "Measure size, memory, latency and throughput of models, on random inputs.",
        ),
        "verify": (
            "slimformer.cli.artifacts:verify_artifact",
            "Check that an artifact is whole and answers as recorded.",
        ),
        "inspect": (
            "slimformer.cli.inspect:inspect_model",
            "Show what a model is made of, with parameters and bytes; no weights are loaded.",
        ),
        "demo": ("slimformer.cli.methods:demo", "Try the methods on a real model in a few minutes, offline."),
    },
)

#: Parts of an objective: what a student learns. Each is a class of `slimformer.objectives.terms`.
TERMS: Registry[Any] = Registry(
    "term",
    {
        "relations": ("slimformer.objectives.terms.relations:Relations", "self-attention relations of one block"),
        "minilm-v1": ("slimformer.objectives.terms.relations:MapsAndValues", "attention maps and value relations"),
        "hidden": ("slimformer.objectives.terms.hidden:HiddenStates", "outputs of blocks, and embeddings"),
        "attention-maps": ("slimformer.objectives.terms.attention:AttentionMaps", "attention probabilities"),
        "attention-scores": ("slimformer.objectives.terms.attention:AttentionScores", "attention scores"),
        "attention-output": (
            "slimformer.objectives.terms.hidden:AttentionOutputs",
            "output of the attention sub-layer",
        ),
        "mha": ("slimformer.objectives.terms.hidden:MultiHeadAttention", "attention before the residual sum"),
        "logits": ("slimformer.objectives.terms.predictions:SoftLabels", "soft labels: what the teacher's head says"),
        "pooled": ("slimformer.objectives.terms.pooled:Pooled", "sentence embeddings"),
        "mlm": ("slimformer.objectives.terms.language:MaskedTokens", "masked language modelling"),
        "clm": ("slimformer.objectives.terms.language:NextTokens", "causal language modelling"),
        "reconstruction": (
            "slimformer.objectives.terms.language:Reconstruction",
            "hidden tokens, each text counting alike",
        ),
        "patches": ("slimformer.objectives.terms.patches:HiddenPatches", "pixels of hidden patches"),
        "patch-predictions": (
            "slimformer.objectives.terms.patches:PatchPredictions",
            "what the teacher's decoder says of hidden patches",
        ),
        "features": ("slimformer.objectives.terms.features:UnmaskedFeatures", "last hidden states of the whole input"),
        "labels": ("slimformer.objectives.terms.predictions:Labels", "the task's own loss"),
        "contrastive": ("slimformer.objectives.terms.embeddings:Contrastive", "embeddings that find their like"),
        "r3f": ("slimformer.objectives.terms.smoothness:R3F", "predictions that noise does not change"),
        "ranked-pairs": ("slimformer.objectives.terms.embeddings:RankedPairs", "pairs as alike as people say"),
    },
)

#: Number formats a weight can be quantized to; each is a `slimformer.formats.NumberFormat`.
FORMATS: Registry[Any] = Registry(
    "format",
    {
        "ternary": ("slimformer.formats.ternary:TERNARY", "-a, 0 or +a: 2 bits, or 1.6 with the smaller layout"),
        "binary": ("slimformer.formats.binary:BINARY", "-a or +a: 1 bit"),
        "int2": ("slimformer.formats.integer:INT2", "four even levels: 2 bits"),
        "int3": ("slimformer.formats.integer:INT3", "eight even levels: 3 bits"),
        "int4": ("slimformer.formats.integer:INT4", "15 even levels with zero: 4 bits"),
        "int8": ("slimformer.formats.integer:INT8", "255 even levels with zero: 8 bits"),
    },
)

#: Ways of storing a model in a folder, in the order in which a folder is tried.
STORAGE: Registry[Any] = Registry(
    "storage",
    {
        "mask": ("slimformer.artifact.storage.mask:MaskStorage", "One bit per masked weight, on a base."),
        "packed-elastic": (
            "slimformer.artifact.storage.elastic:PackedElasticStorage",
            "Several codes to a byte, with the sizes nested in them.",
        ),
        "packed": ("slimformer.artifact.storage.packed:PackedStorage", "Several codes to a byte."),
        "per-block": (
            "slimformer.artifact.storage.per_block:PerBlockStorage",
            "A model whose blocks have widths of their own.",
        ),
        "elastic": ("slimformer.artifact.storage.elastic:ElasticStorage", "A plain model with the sizes nested in it."),
        "plain": ("slimformer.artifact.storage.plain:PlainStorage", "What `save_pretrained` writes."),
    },
    group="slimformer.storage",
)

#: What a model has to do: each kind of task owns everything about it.
KINDS: Registry[Any] = Registry(
    "kind",
    {
        "classification": (
            "slimformer.tasks.kinds.classification:Classification",
            "texts or pairs with one label each",
        ),
        "multi-label": ("slimformer.tasks.kinds.multi_label:MultiLabel", "texts or pairs with any number of labels"),
        "regression": ("slimformer.tasks.kinds.regression:Regression", "texts or pairs with one number each"),
        "tagging": ("slimformer.tasks.kinds.tagging:Tagging", "words with a tag each"),
        "multiple-choice": ("slimformer.tasks.kinds.multiple_choice:MultipleChoice", "questions with several choices"),
        "question-answering": (
            "slimformer.tasks.kinds.question_answering:QuestionAnswering",
            "answers that are spans of a context",
        ),
        "language-modelling": (
            "slimformer.tasks.kinds.language_modelling:LanguageModelling",
            "running text, predicted token by token",
        ),
        "last-word": ("slimformer.tasks.kinds.language_modelling:LastWord", "the last word of a passage"),
        "image-classification": (
            "slimformer.tasks.kinds.image_classification:ImageClassification",
            "images with one label each",
        ),
        "retrieval": ("slimformer.tasks.kinds.embedding:Retrieval", "texts that should find their like"),
        "similarity": (
            "slimformer.tasks.kinds.embedding:Similarity",
            "pairs of texts with a number each, compared by embeddings",
        ),
        "image-retrieval": ("slimformer.tasks.kinds.embedding:ImageRetrieval", "images that should find their like"),
    },
)
