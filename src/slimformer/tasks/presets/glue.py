"""GLUE, read without quotes as it was written."""

from __future__ import annotations

from dataclasses import replace

from slimformer.tasks.preset import Carve, Hub, Layout, Preset, register

_TRAIN_DEV = {"train": ("train.tsv",), "dev": ("dev.tsv",)}
_TENTH = {"train": 0.9, "dev": 0.1}
_ENTAILED = ("entailment", "not_entailment")

SST2 = Preset(
    "sst2",
    "classification",
    "sentiment of film reviews",
    layouts=(
        # GLUE's own test.tsv has no labels.
        Layout(
            {**_TRAIN_DEV, "test": ("test-labeled.tsv",)},
            "tsv",
            text=("sentence",),
            label_names={"0": "negative", "1": "positive"},
        ),
    ),
    labels=("negative", "positive"),
    metrics=("accuracy",),
    hub=Hub("nyu-mll/glue:sst2", ("sentence",)),
)
COLA = Preset(
    "cola",
    "classification",
    "grammatical acceptability",
    layouts=(
        Layout(
            {"train": ("train.tsv", "in_domain_train.tsv"), "dev": ("dev.tsv", "in_domain_dev.tsv")},
            "tsv",
            {"columns": ("source", "label", "star", "sentence")},
            text=("sentence",),
            label_names={"0": "unacceptable", "1": "acceptable"},
        ),
    ),
    labels=("unacceptable", "acceptable"),
    metrics=("matthews", "accuracy"),
    hub=Hub("nyu-mll/glue:cola", ("sentence",)),
)
MRPC = Preset(
    "mrpc",
    "classification",
    "paraphrases in the news",
    layouts=(
        Layout(
            {**_TRAIN_DEV},
            "tsv",
            text=("#1 String", "#2 String"),
            label="Quality",
            label_names={"0": "not_equivalent", "1": "equivalent"},
        ),
        # Microsoft's own files have no dev split; GLUE's list of which rows make it is not among them.
        Layout(
            {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)},
            "tsv",
            text=("#1 String", "#2 String"),
            label="Quality",
            label_names={"0": "not_equivalent", "1": "equivalent"},
            carve=Carve("train", _TENTH),
        ),
    ),
    labels=("not_equivalent", "equivalent"),
    metrics=("f1", "accuracy"),
    hub=Hub("nyu-mll/glue:mrpc", ("sentence1", "sentence2")),
)
QQP = Preset(
    "qqp",
    "classification",
    "questions that ask the same",
    layouts=(
        # A few rows of GLUE's file lack fields.
        Layout(
            _TRAIN_DEV,
            "tsv",
            {"skip_ragged": True},
            text=("question1", "question2"),
            label="is_duplicate",
            label_names={"0": "not_duplicate", "1": "duplicate"},
            drop_incomplete=True,
        ),
    ),
    labels=("not_duplicate", "duplicate"),
    metrics=("f1", "accuracy"),
    hub=Hub("nyu-mll/glue:qqp", ("question1", "question2")),
)
STSB = Preset(
    "stsb",
    "regression",
    "similarity of sentences, 0 to 5",
    layouts=(
        Layout(_TRAIN_DEV, "tsv", text=("sentence1", "sentence2"), label="score"),
        Layout(
            {"train": ("stsb-en-train.csv",), "dev": ("stsb-en-dev.csv",), "test": ("stsb-en-test.csv",)},
            "csv",
            {"columns": ("sentence1", "sentence2", "score")},
            text=("sentence1", "sentence2"),
            label="score",
        ),
    ),
    metrics=("pearson", "spearman"),
    hub=Hub("nyu-mll/glue:stsb", ("sentence1", "sentence2")),
)
STSB_SIMILARITY = replace(
    STSB,
    name="stsb-similarity",
    kind="similarity",
    summary="similarity of sentences by their embeddings",
    metrics=("spearman", "pearson"),
)
MNLI = Preset(
    "mnli",
    "classification",
    "entailment in many genres; dev is the matched half",
    layouts=(
        Layout(
            {"train": ("train.tsv",), "dev": ("dev_matched.tsv",), "test": ("dev_mismatched.tsv",)},
            "tsv",
            text=("sentence1", "sentence2"),
            label="gold_label",
        ),
    ),
    labels=("entailment", "neutral", "contradiction"),
    metrics=("accuracy",),
    hub=Hub("nyu-mll/glue:mnli", ("premise", "hypothesis")),
)
QNLI = Preset(
    "qnli",
    "classification",
    "does the sentence answer the question",
    layouts=(
        Layout(
            _TRAIN_DEV,
            "tsv",
            text=("question", "sentence"),
            carve=Carve("dev", {"train": 0.8, "dev": 0.1, "test": 0.1}, ("question",)),
        ),
    ),
    labels=_ENTAILED,
    metrics=("accuracy",),
    hub=Hub("nyu-mll/glue:qnli", ("question", "sentence")),
)
RTE = Preset(
    "rte",
    "classification",
    "entailment, two classes",
    layouts=(Layout(_TRAIN_DEV, "tsv", text=("sentence1", "sentence2")),),
    labels=_ENTAILED,
    metrics=("accuracy",),
    max_length=256,
    hub=Hub("nyu-mll/glue:rte", ("sentence1", "sentence2")),
)
WNLI = Preset(
    "wnli",
    "classification",
    "what a pronoun refers to",
    layouts=(
        Layout(
            _TRAIN_DEV,
            "tsv",
            text=("sentence1", "sentence2"),
            label_names={"0": "not_entailment", "1": "entailment"},
        ),
    ),
    labels=("not_entailment", "entailment"),
    metrics=("accuracy",),
    hub=Hub("nyu-mll/glue:wnli", ("sentence1", "sentence2")),
)

register(SST2, COLA, MRPC, QQP, STSB, STSB_SIMILARITY, MNLI, QNLI, RTE, WNLI)
