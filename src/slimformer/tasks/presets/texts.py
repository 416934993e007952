"""Other text classification and regression."""

from __future__ import annotations

from dataclasses import replace

from slimformer.tasks.preset import Carve, Hub, Layout, Preset, register

_JSONL_IN_TXT = {
    "train": ("train.txt", "train.jsonl"),
    "dev": ("dev.txt", "dev.jsonl"),
    "test": ("test.txt", "test.jsonl"),
}
_TOPICS = ("World", "Sports", "Business", "Sci/Tech")
_RELATIONS = ("entailment", "neutral", "contradiction")
_TENTHS = {"train": 0.8, "dev": 0.1, "test": 0.1}

_SICK = Layout(
    {"train": ("SICK.txt", "SICK_annotated.txt")},
    "tsv",
    text=("sentence_A", "sentence_B"),
    label=("entailment_judgment", "entailment_label"),
    label_names={name.upper(): name for name in _RELATIONS},
    carve=Carve("train", _TENTHS, ("sentence_A",)),
    split_column=("SemEval_set", {"TRAIN": "train", "TRIAL": "dev", "TEST": "test"}),
)
SICK = Preset(
    "sick",
    "classification",
    "entailment between descriptions, three classes",
    layouts=(_SICK,),
    labels=_RELATIONS,
    metrics=("accuracy",),
)
SICK_RELATEDNESS = Preset(
    "sick-relatedness",
    "regression",
    "relatedness of descriptions, 1 to 5",
    layouts=(replace(_SICK, label="relatedness_score", label_names={}),),
    metrics=("pearson", "spearman"),
)
XNLI = Preset(
    "xnli",
    "classification",
    "entailment in fifteen languages",
    layouts=(
        Layout(
            {"train": ("multinli.train.{language}.tsv",)},
            "tsv",
            text=("premise", "hypo"),
            label_names={"contradictory": "contradiction"},
        ),
        Layout(
            {"dev": ("xnli.dev.tsv",), "test": ("xnli.test.tsv",)},
            "tsv",
            text=("sentence1", "sentence2"),
            label="gold_label",
            language_column="language",
        ),
        # One language a folder. The three hypotheses of a premise stay together when train is cut from dev.
        Layout(
            {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
            "tsv",
            text=("text_a", "text_b"),
            carve=Carve("dev", {"train": 0.8, "dev": 0.2}, ("text_a",)),
        ),
    ),
    labels=_RELATIONS,
    metrics=("accuracy",),
    hub=Hub("facebook/xnli:{language}", ("premise", "hypothesis")),
    multilingual=True,
)
AG_NEWS = Preset(
    "ag_news",
    "classification",
    "topics of news",
    layouts=(
        Layout(
            {"train": ("train.csv",), "test": ("test.csv",)},
            "csv",
            {"columns": ("label", "title", "description")},
            text=("title", "description"),
            join_text=True,
            label_names={str(number): topic for number, topic in enumerate(_TOPICS, start=1)},
            carve=Carve("train", {"train": 0.9, "dev": 0.1}),
        ),
        # All rows of this subset's dev file are in its train file as well.
        Layout(
            {"train": ("subset_train.csv",), "dev": ("subset_dev.csv",), "test": ("subset_test.csv",)},
            "csv",
            {"columns": ("text", "label")},
            label_names={str(number): topic for number, topic in enumerate(_TOPICS)},
            distinct_from={"train": "dev"},
        ),
    ),
    labels=_TOPICS,
    metrics=("accuracy", "f1_macro"),
    hub=Hub("fancyzhx/ag_news"),
)
IMDB = Preset(
    "imdb",
    "classification",
    "sentiment of long film reviews",
    layouts=(
        Layout(
            {"train": ("train",), "test": ("test",)},
            "class-folders",
            {"classes": ("neg", "pos")},
            label_names={"neg": "negative", "pos": "positive"},
            carve=Carve("train", {"train": 0.9, "dev": 0.1}),
        ),
        Layout(
            {"train": ("imdb*.csv",)},
            "csv",
            label_names={"0": "negative", "1": "positive", "neg": "negative", "pos": "positive"},
            carve=Carve("train", _TENTHS),
        ),
    ),
    labels=("negative", "positive"),
    metrics=("accuracy",),
    max_length=512,
    hub=Hub("stanfordnlp/imdb", label_names={"neg": "negative", "pos": "positive"}),
)
CITATION_INTENT = Preset(
    "citation-intent",
    "classification",
    "why a paper is cited (ACL-ARC)",
    layouts=(Layout(_JSONL_IN_TXT, "jsonl"),),
    labels=("Background", "CompareOrContrast", "Extends", "Future", "Motivation", "Uses"),
    metrics=("f1_macro", "accuracy"),
    max_length=256,
)
SCIERC = Preset(
    "scierc",
    "classification",
    "relations between terms of science",
    layouts=(Layout(_JSONL_IN_TXT, "jsonl"),),
    labels=("COMPARE", "CONJUNCTION", "EVALUATE-FOR", "FEATURE-OF", "HYPONYM-OF", "PART-OF", "USED-FOR"),
    metrics=("f1_macro", "f1_micro", "accuracy"),
    max_length=256,
)
TWEET_EMOTION = Preset(
    "tweet-emotion",
    "classification",
    "emotion of tweets (TweetEval)",
    layouts=(
        Layout(
            {"train": ("train_text.txt",), "dev": ("val_text.txt",), "test": ("test_text.txt",)},
            "text-and-labels",
            label_names={"0": "anger", "1": "joy", "2": "optimism", "3": "sadness"},
        ),
    ),
    labels=("anger", "joy", "optimism", "sadness"),
    metrics=("f1_macro", "accuracy"),
    hub=Hub("cardiffnlp/tweet_eval:emotion"),
)
TREC = Preset(
    "trec",
    "classification",
    "what a question asks for, six classes",
    layouts=(
        # The files are older than UTF-8's victory.
        Layout(
            {"train": ("train_5500.label",), "test": ("TREC_10.label",)},
            "trec",
            {"encoding": "latin-1"},
            carve=Carve("train", {"train": 0.9, "dev": 0.1}),
        ),
    ),
    labels=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    metrics=("accuracy",),
    hub=Hub("CogComp/trec", label="coarse_label"),
)

register(SICK, SICK_RELATEDNESS, XNLI, AG_NEWS, IMDB, CITATION_INTENT, SCIERC, TWEET_EMOTION, TREC)
