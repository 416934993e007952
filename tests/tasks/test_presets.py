"""Presets on the real data, and on the layouts that users know."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task, known
from slimformer.tasks.kinds import kind_of
from slimformer.tasks.preset import preset_of

# Rows of train, dev and test; None where there is no labelled split. Where a split is cut from the file of another,
# the parts add up to the rows of that file.
ROWS = {
    ("sst2", "sst2"): (67349, 872, 1821),
    ("cola", "cola"): (8551, 1043, None),
    ("mrpc", "mrpc"): (3668, 408, 1725),  # 4076 in train
    ("rte", "rte"): (2490, 277, None),
    ("qnli", "qnli"): (4378, 544, 541),  # 5463 in dev
    ("stsb", "stsb"): (5749, 1500, 1379),
    ("sick", "sick"): (7973, 981, 973),  # 9927
    ("sick-relatedness", "sick"): (7973, 981, 973),
    ("xnli", "xnli-zh"): (1992, 498, 5010),  # 2490 in dev
    ("ag_news", "ag_news"): (4000, 1000, 7600),  # 5000 in train, of which 1000 are dev's
    ("imdb", "imdb"): (9602, 1199, 1199),  # 12000
    ("ud-pos", "ud-english-ewt"): (12544, 2001, 2077),
    ("ncbi-ner", "ner-NCBI-disease"): (5424, 923, 940),
    ("arc-easy", "arc"): (1933, 214, 549),  # 2251 in dev, 104 of them without choices; 570 in test, 21 without
    ("arc-challenge", "arc"): (986, 110, 294),  # 1119 and 23; 299 and 5
    ("xquad", "xquad"): (668, 293, 229),  # 1190
    ("citation-intent", "citation_intent"): (1688, 114, 139),
    ("scierc", "sciie-relation-extraction"): (3219, 455, 974),
    ("tweet-emotion", "tweeteval-emotion"): (3257, 374, 1421),
    ("lambada", "lambada"): (None, 4869, 5153),
    ("wikitext-2", "wikitext-2"): (2215, 246, 2891),  # 2461 in dev
    ("tinyshakespeare", "tinyshakespeare"): (36000, 2000, 2000),
    ("fashion-mnist", "fashion-mnist"): (54000, 6000, 10000),  # 60000 in train
    ("cifar10", "cifar10-jpg"): (13500, 1500, 3000),  # 15000 in train
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "folder"), ROWS)
def test_rows_of_the_real_data(shared_data, name, folder):
    task, expected = get_task(name), ROWS[name, folder]
    splits = [split for split, rows in zip(("train", "dev", "test"), expected, strict=True) if rows]
    data = task.load(shared_data / folder, splits)
    assert tuple(len(data[split]) if split in splits else None for split in ("train", "dev", "test")) == expected
    if data.labels:
        seen = {
            label for split in data.splits.values() for row in split for label in row.get("tags", [row.get("label")])
        }
        assert seen == set(range(len(data.labels)))
    for split, rows in zip(("train", "dev", "test"), expected, strict=True):
        if rows is None:
            with pytest.raises(DataError, match=rf"has no {split} split of `{name}`"):
                task.load(shared_data / folder, [split])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "splits", "key"),
    [
        ("mrpc", "mrpc", ("train", "dev"), ("text", "text_pair")),
        ("qnli", "qnli", ("train", "dev", "test"), ("text",)),
        ("sick", "sick", ("train", "dev", "test"), ("text",)),
        ("xnli", "xnli-zh", ("train", "dev"), ("text",)),
        ("ag_news", "ag_news", ("train", "dev", "test"), ("text",)),
        ("imdb", "imdb", ("train", "dev", "test"), ("text",)),
        ("arc", "arc", ("train", "dev"), ("question",)),
        ("xquad", "xquad", ("train", "dev", "test"), ("context",)),
    ],
)
def test_splits_cut_from_one_file_share_nothing(shared_data, name, folder, splits, key):
    data = get_task(name).load(shared_data / folder, splits)
    texts = [{tuple(row[column] for column in key) for row in data[split]} for split in splits]
    assert not any(one & other for one, other in combinations(texts, 2))
    assert any(note.startswith("train: ") for note in data.notes)


def test_xquad_articles_are_in_one_split_whatever_the_language(shared_data):
    ids = {}
    for language in ("en", "zh"):
        data = get_task("xquad").load(shared_data / "xquad", ["train", "dev", "test"], language=language)
        ids[language] = {split: {row["id"] for row in rows} for split, rows in data.splits.items()}
    assert ids["en"] == ids["zh"]
    both = get_task("xquad").load(shared_data / "xquad", ["dev"], language="en,zh")
    assert len(both["dev"]) == 2 * len(ids["en"]["dev"])
    with pytest.raises(DataError, match=r"has no dev split of `xquad`; looked for: xquad.tlh.json; found: xquad.ar"):
        get_task("xquad").load(shared_data / "xquad", ["dev"], language="tlh")
    with pytest.raises(DataError, match="has no dev split of `xquad`"):
        get_task("xquad").load(shared_data / "xquad", ["dev"], language="en,tlh")


def test_a_file_of_a_preset_can_be_given_by_itself(shared_data, write):
    assert len(get_task("sst2").load(shared_data / "sst2" / "dev.tsv", ["dev"])["dev"]) == 872
    assert len(get_task("imdb").load(shared_data / "imdb" / "imdb_12k.csv", ["test"])["test"]) == 1199
    with pytest.raises(DataError, match=r"has no train split of `sst2`; looked for: train.tsv; found: dev.tsv"):
        get_task("sst2").load(shared_data / "sst2" / "dev.tsv", ["train"])
    mine = write("mine.tsv", "sentence\tlabel\n" + "".join(f"row {number}\t{number % 2}\n" for number in range(20)))
    data = get_task("sst2").load(mine)
    assert (len(data["train"]), len(data["dev"]), data.labels) == (18, 2, ["negative", "positive"])


@pytest.mark.parametrize("name", known())
def test_every_entry_holds_together(name):
    preset = preset_of(name)
    kind = kind_of(preset.kind, preset.settings)
    metrics = preset.metrics or kind.metric_names(preset.labels)
    assert set(metrics) <= {*kind.metrics, "f1"}
    for layout in preset.layouts:
        if layout.carve:
            assert sum(layout.carve.shares.values()) == pytest.approx(1)
            assert layout.carve.pool in layout.files
            assert layout.carve.pool in layout.carve.shares
        if preset.labels:
            assert set(layout.label_names.values()) <= set(preset.labels)


def load(tmp_path, name, **options):
    return get_task(name).load(tmp_path, options.pop("splits", ("train", "dev")), **options)


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("mnli", "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label", "0\t1\tA\tB\tneutral\tneutral"),
        ("qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tA?\tB?\t1"),
        ("wnli", "index\tsentence1\tsentence2\tlabel", "0\tA\tB\t0"),
        ("mrpc", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\tA\tB"),
        ("stsb", "index\tgenre\tsentence1\tsentence2\tscore", "0\tnews\tA\tB\t3.2"),
    ],
)
def test_glue_as_given_out(write, tmp_path, name, header, row):
    for file in ("train.tsv", "dev_matched.tsv" if name == "mnli" else "dev.tsv"):
        write(file, f"{header}\n{row}\n")
    data = load(tmp_path, name)
    assert data["dev"][0]["text"].startswith("A")
    assert data["dev"][0]["text_pair"].startswith("B")


def test_qqp_rows_that_lack_fields_are_left_out(write, tmp_path):
    content = "id\tquestion1\tquestion2\tis_duplicate\n1\tA\tB\t0\n2\tA\n3\tA\t\t1\n4\tA\tC\t1\n"
    write("train.tsv", content)
    assert len(load(tmp_path, "qqp", splits=["train"])["train"]) == 2


def test_sick_with_its_own_splits(write, tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
    sets = ["TRAIN", "TRIAL", "TEST", "TRAIN"]
    write("SICK.txt", header + "".join(f"{n}\tA{n}\tB{n}\tNEUTRAL\t{n}.5\t{name}\n" for n, name in enumerate(sets)))
    data = load(tmp_path, "sick", splits=["train", "dev", "test"])
    assert {split: [row["text"] for row in rows] for split, rows in data.splits.items()} == {
        "train": ["A0", "A3"], "dev": ["A1"], "test": ["A2"],
    }  # fmt: skip
    assert load(tmp_path, "sick-relatedness", splits=["dev"])["dev"][0]["label"] == 1.5


def test_xnli_as_given_out(write, tmp_path):
    header = "language\tgold_label\tsentence1\tsentence2\n"
    write("xnli.dev.tsv", header + "de\tneutral\tEins\tZwei\nen\tentailment\tOne\tTwo\n")
    write("multinli.train.de.tsv", "premise\thypo\tlabel\nDrei\tVier\tcontradictory\n")
    data = load(tmp_path, "xnli", language="de")
    assert (data["train"][0]["label"], data["dev"][0]["text"]) == (2, "Eins")
    assert load(tmp_path, "xnli", splits=["dev"])["dev"][0]["text"] == "One"
    with pytest.raises(DataError, match="has no rows whose `language` is `fr`"):
        load(tmp_path, "xnli", splits=["dev"], language="fr")


def test_aclimdb(write, tmp_path):
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            for number in range(10):
                write(f"{split}/{label}/{number}_1.txt", f"{label} review {number} of {split}")
    write("train/unsup/0_0.txt", "unlabelled")
    data = load(tmp_path, "imdb", splits=["train", "dev", "test"])
    assert [len(data[split]) for split in ("train", "dev", "test")] == [18, 2, 20]


def test_trec_is_read_in_its_old_encoding(write, tmp_path):
    write("train_5500.label", b"".join(b"HUM:ind Who is number %d in Orl\xe9ans ?\n" % n for n in range(10)))
    data = load(tmp_path, "trec")
    assert (len(data["train"]), len(data["dev"])) == (9, 1)
    assert "Orléans" in data["train"][0]["text"]


def test_conll2003_in_iob1(write, tmp_path):
    write("eng.train", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nParis NNP I-NP I-LOC\nRome NNP I-NP B-LOC\n. . O O\n")
    data = load(tmp_path, "conll2003", splits=["train"])
    assert [data.labels[tag] for tag in data["train"][0]["tags"]] == ["B-ORG", "B-LOC", "B-LOC", "O"]


def test_swag_as_given_out(write, tmp_path):
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    write("train.csv", header + '0,a,1,"She opens it. She","She opens it.",She,gold,"runs, far.",sits.,eats.,ends.,2\n')
    row = load(tmp_path, "swag", splits=["train"])["train"][0]
    assert row["question"] == "She opens it."
    assert row["choices"] == ["She runs, far.", "She sits.", "She eats.", "She ends."]
    assert row["label"] == 2


def test_squad_v2_as_given_out(write, tmp_path):
    questions = [
        {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": False},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    article = {"title": "Cats", "paragraphs": [{"context": "The cat sat.", "qas": questions}]}
    write("train-v2.0.json", json.dumps({"version": "v2.0", "data": [article]}))
    rows = load(tmp_path, "squad_v2", splits=["train"])["train"]
    assert [row["answers"] for row in rows] == [["cat"], []]
