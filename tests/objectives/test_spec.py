"""Objectives as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer import Anatomy
from slimformer.errors import ConfigError
from slimformer.methods.distill import DistillConfig
from slimformer.methods.distill.setup import sentence_settings
from slimformer.methods.quantize import QuantizeConfig
from slimformer.objectives import Models, TermSpec, build_terms, format_terms, parse_terms
from slimformer.registry import TERMS
from tests import zoo

TEXT = "relations:1, logits:0.5, mlm, hidden[all]:0.1, relations[qk,vv,heads=12]:2"


def test_text_lists_and_mappings_say_the_same():
    specs = parse_terms(TEXT)
    assert specs[0] == TermSpec("relations", 1.0)
    assert specs[2] == TermSpec("mlm", 1.0)
    assert specs[4] == TermSpec("relations", 2.0, ("qk", "vv"), {"heads": "12"})
    listed = ["relations:1", {"logits": 0.5}, "mlm", {"hidden[all]": 0.1, "relations[qk,vv,heads=12]": 2}]
    mapped = {"relations": 1, "logits": "0.5", "mlm": 1.0, "hidden[all]": 0.1, "relations[qk,vv,heads=12]": 2}
    assert parse_terms(listed) == parse_terms(mapped) == specs
    assert parse_terms(" relations : 1 ,logits:5e-1,\nmlm, hidden[ all ]:0.1, relations[qk, vv, heads=12]:2,") == specs


names = st.sampled_from(sorted(TERMS))
values = st.lists(st.sampled_from(["all", "0", "-1", "every-2", "qq"]), max_size=3, unique=True).map(tuple)
options = st.dictionaries(st.sampled_from(["heads", "temperature"]), st.sampled_from(["1", "2.5"]), max_size=2)
weights = st.floats(0, 1e6, allow_nan=False)


@given(
    st.lists(st.builds(TermSpec, names, weights, values, options), min_size=1, max_size=6, unique_by=lambda s: s.label)
)
def test_what_is_written_is_read(specs):
    assert parse_terms(format_terms(specs)) == specs


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("relatons:1", r"character 1: there is no term `relatons` \(do you mean `relations`\?\); known: relations, "),
        ("relations:1, hiden[all]:0.1", r"character 14: there is no term `hiden` \(do you mean `hidden`\?\)"),
        ("relations:1, hidden[0,2:1", r"`hidden\[0,2:1` at character 13 opens a bracket that is not closed"),
        ("relations:much", "the weight `much` of `relations:much` at character 1 is no number"),
        ("relations:-1", "the weight `-1`"),
        ("relations:inf", "the weight `inf`"),
        ("relations 2", "`relations 2` at character 1 is no term"),
        ("relations,,mlm", "`` at character 11 is no term"),
        ("hidden]:1", "is no term"),
        ("", "no term is given|`terms` is ``; give a value"),
        ("mlm, mlm:2", "`mlm` is there twice"),
        (["mlm", "hidden 1"], "`hidden 1` at entry 2 is no term"),
        ({"mlmm": 1}, "`mlmm`: there is no term `mlmm`"),
        ({"mlm": None}, "the weight `None`"),
        (7, "terms are `7`"),
    ],
)
def test_what_is_wrong_is_said_and_where(terms, words):
    with pytest.raises(ConfigError, match=words):
        parse_terms(terms)
    for config in (DistillConfig, QuantizeConfig):
        with pytest.raises(ConfigError, match=words):
            config.make({"terms": terms})


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("hidden[3]", r"term `hidden\[3\]`: there is no block 3; the student has 3 blocks, 0 to 2"),
        ("hidden[some]", "`some` names no block; give `all`"),
        ("logits[2]", "`2` is no option; known: `temperature=…`, `mean_over_classes=…`"),
        (
            "logits[heat=2]",
            r"`logits\[heat=2\]`: there is no setting `heat`; known: mean_over_classes, temp",
        ),
        ("logits[temperature=0]", "`temperature` is `0`: should be greater than 0"),
        ("relations[qq,xy]", "there is no relation `xy`"),
        ("relations[heads=5]", "does not divide"),
        ("mlm", "learns from masked inputs, which this method does not prepare"),
        ("labels", "needs labels, and a corpus has none"),
        ("clm", "`clm` predicts the next token, and `bert` has already seen it; use `mlm`"),
    ],
)
def test_what_models_cannot_learn_is_refused(terms, words):
    anatomy = Anatomy.of(zoo.build_headed("bert"))
    with pytest.raises(Exception, match=words):
        build_terms(parse_terms(terms), Models(anatomy, anatomy, ((2, 2),)))


def test_settings_that_say_the_same_are_refused():
    with pytest.raises(ConfigError, match="`terms` and `objective` both say what is learned"):
        DistillConfig.make({"terms": "relations", "objective": "relations"})
    with pytest.raises(ConfigError, match="`terms` and `beta` both say"):
        QuantizeConfig.make({"terms": "logits", "beta": 0.3})


def test_shorthands_are_terms():
    assert format_terms(DistillConfig(pooled="cls", pooled_weight=0.25).learned) == "relations:1, pooled[cls]:0.25"
    assert format_terms(DistillConfig(objective="soft-labels").learned) == "logits:1"
    assert [
        sentence_settings(DistillConfig(teacher="minilm", terms=terms)).pooling
        for terms in ("relations, pooled[cls]:2", "relations, pooled[cls+mean]", "relations, pooled", "relations")
    ] == [("cls",), ("cls", "mean"), ("mean",), ("mean",)]
    learned = QuantizeConfig(kd="output+map", beta=0.3).learned([(0, 0), (1, 1)])
    assert format_terms(learned) == "logits:1, hidden[embeddings,0,1]:1, attention-output:1, attention-maps:0.3"
