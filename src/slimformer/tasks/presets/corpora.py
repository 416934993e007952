"""Running text."""

from __future__ import annotations

from slimformer.tasks.preset import Carve, Hub, Layout, Preset, register

WIKITEXT_2 = Preset(
    "wikitext-2",
    "language-modelling",
    "articles of Wikipedia",
    layouts=(
        Layout(
            {
                "train": ("train.txt", "wiki.train.tokens", "wiki.train.raw"),
                "dev": ("valid.txt", "wiki.valid.tokens", "wiki.valid.raw"),
                "test": ("test.txt", "wiki.test.tokens", "wiki.test.raw"),
            },
            "text",
            {"skip_blank": True},
            label=None,
            # Without a train file, the beginning of the dev file has to do.
            carve=Carve("dev", {"train": 0.9, "dev": 0.1}),
        ),
    ),
    max_length=256,
    hub=Hub("Salesforce/wikitext:wikitext-2-raw-v1", label=None),
)
TINYSHAKESPEARE = Preset(
    "tinyshakespeare",
    "language-modelling",
    "plays of Shakespeare",
    layouts=(
        Layout(
            {"train": ("input.txt", "tinyshakespeare.txt")},
            "text",
            label=None,
            carve=Carve("train", {"train": 0.9, "dev": 0.05, "test": 0.05}),
        ),
    ),
    max_length=256,
)
LAMBADA = Preset(
    "lambada",
    "last-word",
    "the last word of a passage",
    layouts=(
        Layout({"test": ("lambada_test.jsonl",)}, "jsonl", label=None),
        Layout(
            {"dev": ("lambada_development_plain_text.txt",), "test": ("lambada_test_plain_text.txt",)},
            "text",
            label=None,
        ),
    ),
    max_length=256,
    hub=Hub("EleutherAI/lambada_openai:default", label=None),
)

register(WIKITEXT_2, TINYSHAKESPEARE, LAMBADA)
