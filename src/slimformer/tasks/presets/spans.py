"""Tagging, multiple choice and question answering."""

from __future__ import annotations

from slimformer.tasks.preset import Carve, Hub, Layout, Preset, register

_UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
)  # fmt: skip
_ENTITY_TYPES = ("LOC", "MISC", "ORG", "PER")

UD_POS = Preset(
    "ud-pos",
    "tagging",
    "parts of speech (Universal Dependencies)",
    layouts=(
        Layout(
            {split: (f"{{language}}_*-ud-{split}.conllu",) for split in ("train", "dev", "test")},
            "conllu",
            text=("tokens",),
            label="tags",
            default_language="*",
        ),
    ),
    labels=_UPOS,
    metrics=("accuracy",),
    hub=Hub("universal-dependencies/universal_dependencies:en_ewt", ("tokens",), "upos"),
    multilingual=True,
)
NCBI_NER = Preset(
    "ncbi-ner",
    "tagging",
    "names of diseases",
    layouts=(
        Layout(
            {"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)},
            "conll",
            text=("tokens",),
            label="tags",
        ),
    ),
    labels=("O", "B-Disease", "I-Disease"),
    hub=Hub("ncbi/ncbi_disease", ("tokens",), "ner_tags"),
)
CONLL2003 = Preset(
    "conll2003",
    "tagging",
    "persons, places, organisations and others",
    layouts=(
        Layout(
            {
                "train": ("train.txt", "eng.train"),
                "dev": ("valid.txt", "dev.txt", "eng.testa"),
                "test": ("test.txt", "eng.testb"),
            },
            "conll",
            text=("tokens",),
            label="tags",
        ),
    ),
    labels=("O", *(f"{place}-{entity}" for entity in _ENTITY_TYPES for place in "BI")),
    hub=Hub("eriktks/conll2003", ("tokens",), "ner_tags"),
    # The files as first given out are in IOB1; those in IOB2 are not changed by this.
    settings={"iob1": True},
)


def _arc(name: str, summary: str, files: str, hub: str) -> Preset:
    # What these files call dev and test are ARC's own train and dev; ARC's own test is not among them.
    return Preset(
        name,
        "multiple-choice",
        summary,
        layouts=(
            Layout(
                {"dev": (f"{files}_dev.csv",), "test": (f"{files}_test.csv",)},
                "csv",
                {"columns": ("question", "A", "B", "C", "D", "answer")},
                text=("question",),
                label="answer",
                choices=("A", "B", "C", "D"),
                carve=Carve("dev", {"train": 0.9, "dev": 0.1}),
                # Some rows have no choices at all, and some an answer E whose choice is missing.
                drop_incomplete=True,
            ),
        ),
        hub=Hub(hub, ("question",), "answerKey", ("choices",)),
    )


ARC = _arc("arc", "questions of science at school, easy and hard", "arc_*", "allenai/ai2_arc:ARC-Easy")
ARC_EASY = _arc("arc-easy", "easy questions of science at school", "arc_easy", "allenai/ai2_arc:ARC-Easy")
ARC_CHALLENGE = _arc(
    "arc-challenge", "hard questions of science at school", "arc_challenge", "allenai/ai2_arc:ARC-Challenge"
)
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
SWAG = Preset(
    "swag",
    "multiple-choice",
    "what happens next",
    layouts=(
        Layout(
            {"train": ("train.csv",), "dev": ("val.csv",)},
            "csv",
            text=("sent1", "sent2"),
            label="label",
            choices=_ENDINGS,
        ),
    ),
    hub=Hub("allenai/swag:regular", ("sent1", "sent2"), "label", _ENDINGS),
)

_QUESTION = ("question", "context")
SQUAD = Preset(
    "squad",
    "question-answering",
    "answers in Wikipedia",
    layouts=(
        Layout({"train": ("train-v1*.json",), "dev": ("dev-v1*.json",)}, "squad", text=_QUESTION, label="answers"),
    ),
    max_length=384,
    hub=Hub("rajpurkar/squad", _QUESTION, "answers"),
)
SQUAD_V2 = Preset(
    "squad_v2",
    "question-answering",
    "answers in Wikipedia, or none",
    layouts=(
        Layout({"train": ("train-v2*.json",), "dev": ("dev-v2*.json",)}, "squad", text=_QUESTION, label="answers"),
    ),
    max_length=384,
    hub=Hub("rajpurkar/squad_v2", _QUESTION, "answers"),
    settings={"null_answers": True},
)
XQUAD = Preset(
    "xquad",
    "question-answering",
    "answers in Wikipedia, in several languages",
    layouts=(
        # Titles are the same in all languages, so an article is in one split whatever the language.
        Layout(
            {"test": ("xquad.{language}.json",)},
            "squad",
            text=_QUESTION,
            label="answers",
            carve=Carve("test", {"train": 0.6, "dev": 0.2, "test": 0.2}, ("title",)),
        ),
    ),
    max_length=384,
    hub=Hub("google/xquad:xquad.{language}", _QUESTION, "answers"),
    multilingual=True,
)

register(UD_POS, NCBI_NER, CONLL2003, ARC, ARC_EASY, ARC_CHALLENGE, SWAG, SQUAD, SQUAD_V2, XQUAD)
