"""Everything that can be chosen by name, and where it lives.

A method, a distillation term, a number format, a task kind or a way of storing is registered by one line here: its
name, the dotted path of the object and a line of help. Reading the registry imports nothing of what it names, so it
costs nothing and stands below every layer. Packages outside register through the entry point group of a registry.
"""

from __future__ import annotations

from typing import Any

from slimformer.registry.names import Entry, Registry

__all__ = ["COMMANDS", "FORMATS", "KINDS", "METHODS", "STORAGE", "TERMS", "Entry", "Registry"]

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
        "extend": ("slimformer.methods.extend.method:Extend", "Give a model the word pieces that a domain needs."),
        "trim": ("slimformer.methods.trim.method:Trim", "Drop the word pieces that a domain does not use."),
    },
)

#: Commands that are no methods.
COMMANDS: Registry[Any] = Registry(
    "command",
    {
        "merge": ("slimformer.cli.artifacts:merge_mask", "Turn a mask and its base into a plain checkpoint."),
        "unpack": (
            "slimformer.cli.artifacts:unpack_model",
            "Turn a packed model into a plain checkpoint that loads without slimformer.",
        ),
        "extract": (
            "slimformer.cli.artifacts:extract_size",
            "Write one size of an elastic model, or the largest within a budget, as a model of its own.",
        ),
        "export": (
            "slimformer.cli.export:export_model",
            "Write a model as ONNX, or as a GGUF file for llama.cpp.",
        ),
        "evaluate": (
            "slimformer.cli.evaluate:evaluate_model",
            "Measure an artifact on a task, by default the one it was trained for.",
        ),
        "compare": (
            "slimformer.cli.evaluate:compare_models",
            "Measure models side by side: quality, bytes, memory and milliseconds on real texts.",
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
        "push": (
            "slimformer.cli.hub:push_artifact",
            "Push an artifact to the Hugging Face Hub, without a path of this machine.",
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
        "denoising": (
            "slimformer.objectives.terms.pretraining.denoising:Denoising",
            "a text from the embedding of what is left of it",
        ),
        "patches": ("slimformer.objectives.terms.pretraining.patches:HiddenPatches", "pixels of hidden patches"),
        "patch-predictions": (
            "slimformer.objectives.terms.pretraining.patches:PatchPredictions",
            "what the teacher's decoder says of hidden patches",
        ),
        "features": (
            "slimformer.objectives.terms.pretraining.features:UnmaskedFeatures",
            "last hidden states of the whole input",
        ),
        "weights": (
            "slimformer.objectives.terms.pretraining.weights:WeightDistance",
            "weights near those of a teacher of the same shape",
        ),
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
        "onnx": ("slimformer.artifact.storage.onnx:OnnxStorage", "An ONNX file, which ONNX Runtime runs."),
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
