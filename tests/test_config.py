"""Settings: from Python, flags and YAML alike, with errors that name key and value."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from pydantic import Field

from slimformer.config import Bytes, Config, parse_bytes, parse_count
from slimformer.errors import ConfigError
from slimformer.methods.finetune import FinetuneConfig
from slimformer.registry import METHODS
from slimformer.tasks.options import TaskOptions

FIELDS = FinetuneConfig.model_fields

positive = st.integers(1, 10**9)
share = st.floats(0, 1, exclude_max=True)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
VALUES = {
    "model": text, "out": text, "task": text, "data": text, "text_column": text, "label_column": text,
    "header": st.booleans(), "quoting": st.sampled_from(["csv", "none"]),
    "shares": st.sampled_from(["0.9,0.1", "0.8,0.1,0.1", "0.25, 0.75"]), "label_separator": text,
    "language": text, "max_length": positive, "limit": positive, "epochs": st.floats(1e-3, 1e6),
    "max_steps": positive, "batch_size": positive, "accumulation": positive, "lr": st.floats(1e-12, 1.0),
    "schedule": st.sampled_from(["linear", "cosine", "constant"]), "warmup": share, "weight_decay": st.floats(0, 1),
    "beta1": share, "beta2": share, "clip": st.floats(0, 1e3), "seed": st.integers(0, 2**31), "bf16": st.booleans(),
    "gradient_checkpointing": st.booleans(), "group_by_length": st.booleans(), "eval_every": positive,
    "best": st.booleans(), "lr_widenings": st.integers(0, 32), "save_every": positive, "log_every": positive,
    "threads": st.integers(1, 64), "tensorboard": text, "store": st.sampled_from(["float32", "half", "bfloat16"]),
    "keep_close": st.sampled_from(["recadam[pull=2000]", "mars", "frobenius[0.5]", "r3f[noise=0.001]:0.5", "supcon:1"]),
    "shard": st.just(False),  # it excludes `keep_close`; tests/train/test_sharded.py says so
}  # fmt: skip
settings = st.fixed_dictionaries({}, optional=VALUES)


def test_every_field_is_covered_and_described():
    # A grid and a learning rate exclude each other; tests/train/test_rates.py reads and writes grids, test_tracking.py
    # names of trackers, which are several.
    assert {*VALUES, "lr_grid", "track"} == FIELDS.keys()
    for name, field in FIELDS.items():
        assert field.description, name
        assert field.description.endswith((".", "…")), name


@limits(deadline=None)  # it writes a file, which takes its time on a busy machine
@given(settings)
def test_yaml_round_trip(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / "run.yaml"
    file.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    read = FinetuneConfig.read(file, {})
    assert read.given() == values
    assert FinetuneConfig.make(read.given()) == read
    file.write_text(yaml.safe_dump(read.model_dump(mode="json"), allow_unicode=True), encoding="utf-8")
    assert FinetuneConfig.read(file, {}) == read


@given(settings, settings)
def test_what_is_given_besides_wins(tmp_path_factory, stored, flags):
    file = tmp_path_factory.getbasetemp() / "run.yaml"
    file.write_text(yaml.safe_dump(stored, allow_unicode=True), encoding="utf-8")
    dashed = {key.replace("_", "-"): value for key, value in flags.items()}
    assert FinetuneConfig.read(file, flags).given() == {**stored, **flags}
    assert FinetuneConfig.read(file, dashed) == FinetuneConfig.read(file, flags)


@given(settings)
def test_dashes_and_underscores_mean_the_same(values):
    dashed = {key.replace("_", "-"): value for key, value in values.items()}
    assert FinetuneConfig.make(dashed) == FinetuneConfig.make(values)


@given(st.text(st.characters(categories=["L", "N"]), min_size=1).filter(lambda key: key not in FIELDS))
def test_an_unknown_key_is_named_with_those_known(key):
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.make({key: 1})
    assert str(caught.value).startswith(f"there is no setting `{key}`")
    assert "; known: " in str(caught.value)
    for name in FIELDS:
        assert name in str(caught.value)


BAD = [
    ("batch_size", 0, "greater than or equal to 1"),
    ("batch_size", 1.5, "valid integer"),
    ("batch_size", "many", "valid integer"),
    ("batch_size", None, "valid integer"),
    ("max_steps", -3, "greater than or equal to 1"),
    ("lr", 0, "greater than 0"),
    ("lr", float("inf"), "finite number"),
    ("lr", float("nan"), "finite number"),
    ("epochs", -1.0, "greater than 0"),
    ("warmup", 1.0, "less than 1"),
    ("seed", -1, "greater than or equal to 0"),
    ("schedule", "square", "'linear', 'cosine' or 'constant'"),
    ("bf16", "perhaps", "valid boolean"),
    ("keep_close", 7, "a text, in quotes"),
    ("task", 7, "a text, in quotes"),
    ("data", ["a"], "a text, in quotes"),
]


@pytest.mark.parametrize(("key", "value", "words"), BAD)
def test_a_bad_value_is_named_with_its_key(key, value, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.make({key: value})
    message = str(caught.value)
    assert message.startswith(f"`{key}` is `{value}`: should be ")
    assert words in message
    assert "\n" not in message
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({key.replace("_", "-"): value}))
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.read(file, {})
    assert str(caught.value) == f"`{file}`: {message}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- a\n- b\n", "holds a list; write one `setting: value` per line"),
        (b"7\n", "holds a int"),
        (b"a: [1\n", "is not valid YAML: "),
        (b"a: 1\n\tb: 2\n", "is not valid YAML: found character '\\t' that cannot start any token in line 2; mend it"),
        (b"a: 1\n---\nb: 2\n", "is not valid YAML: found another document in line 2; mend it"),
        (b"\xff\xfe\x00", "is text in utf-16, not in UTF-8"),
        (b"a: !!python/object/apply:os.getcwd []\n", "is not valid YAML: "),
        (b"batch_size: 4\nbatch-size: 8\n", "`batch_size` is there twice"),
        (b"batch_size: 4\nbatch_size: 8\n", "`batch_size` is there twice"),
        (b"1: 2\n", "there is no setting `1`"),
    ],
)
def test_a_file_that_holds_no_settings(content, words, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.read(file, {})
    assert str(caught.value).startswith(f"`{file}`")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_empty_or_not_there(tmp_path):
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert FinetuneConfig.read(tmp_path / "run.yaml", {"seed": 4}).given() == {"seed": 4}
    assert FinetuneConfig.read(None, {"seed": 4}).given() == {"seed": 4}
    with pytest.raises(ConfigError, match="no config file at"):
        FinetuneConfig.read(tmp_path / "other.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read"):
        FinetuneConfig.read(tmp_path, {})


def test_numbers_as_people_write_them(tmp_path):
    """YAML 1.1 takes 2e-5 for text."""
    (tmp_path / "run.yaml").write_text("lr: 2e-5\nbatch-size: 16\n")
    assert FinetuneConfig.read(tmp_path / "run.yaml", {}).lr == 2e-5


def test_paths_count_as_text():
    assert FinetuneConfig.make({"model": Path("a/b"), "out": Path("c")}).model == "a/b"


def test_settings_cannot_be_changed_afterwards():
    config = TaskOptions(task="sst2")
    with pytest.raises(Exception, match="frozen"):
        config.task = "rte"


def test_what_is_missing_is_named_as_a_flag():
    with pytest.raises(ConfigError, match=r"^`--max-length` must be given, as a flag or in the config file$"):
        TaskOptions(task="sst2").require("task", "max_length")
    with pytest.raises(ConfigError, match=r"^`--task` and `--data` must be given"):
        TaskOptions().require("task", "data")


class Defaults(Config):
    size: Literal["s", "m"] = Field("m", description="A size.")


def test_defaults_are_not_taken_for_given():
    assert Defaults().given() == {}
    assert Defaults(size="m").given() == {"size": "m"}


def numbers(kind):
    """What the schema says of the integers among the settings of a method, by their names."""
    for name, described in kind.model_json_schema()["properties"].items():
        for each in described.get("anyOf", [described]):
            if each.get("type") == "integer":
                yield name, each


@pytest.mark.parametrize("method", METHODS)
def test_no_number_is_without_bounds(method):
    """A number of 2**63 overflows somewhere below, after minutes and in words of another library."""
    kind = METHODS.get(method).config_class
    assert dict(numbers(kind))
    for name, _ in numbers(kind):
        for value in (2**63, -(2**63), int("9" * 4000)):
            with pytest.raises(ConfigError, match=f"`{name}` is `"):
                kind.make({name: value})


def test_a_large_value_is_not_written_out(tmp_path):
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.make({"batch_size": [["x" * 10_000] * 1_000] * 1_000})
    assert len(str(caught.value)) < 500


def test_a_path_that_is_not_utf8_is_refused_because_it_could_not_be_recorded():
    with pytest.raises(ConfigError, match=r"`data` is `\\udce9t\\udce9`, which is not UTF-8"):
        FinetuneConfig.make({"data": b"\xe9t\xe9".decode("utf-8", "surrogateescape")})


@pytest.mark.parametrize("key", ["seed", "max_length", "lr", "model"])
def test_true_and_false_are_neither_numbers_nor_text(key):
    with pytest.raises(ConfigError, match=f"`{key}` is `True`; give a number or a text"):
        FinetuneConfig.make({key: True})


UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@given(st.integers(1, 10**6), st.integers(0, 999), st.sampled_from(list(UNITS)), st.sampled_from(["", " ", "  "]))
def test_a_size_with_a_unit_is_that_many_times_its_unit(whole, thousandths, unit, space):
    size = (1000 * whole + thousandths) * UNITS[unit] // 1000
    written = f"{whole}.{thousandths:03d}{space}{unit}"
    assert parse_count(written) == parse_bytes(written) == parse_bytes(f"{written}B") == size
    assert parse_bytes(f"{written}b".upper()) == parse_bytes(f"{written}b".lower()) == size
    if unit:
        power = "kMG".index(unit) + 1
        assert parse_bytes(f"{written}iB") == (1000 * whole + thousandths) * 1024**power // 1000


@given(st.integers(1, 2**60))
def test_plain_numbers_are_sizes_as_they_are(size):
    assert parse_count(size) == parse_count(str(size)) == parse_bytes(f"{size:_}") == parse_bytes(f" {size} ") == size


@given(st.one_of(st.text(), st.floats(), st.booleans(), st.integers(), st.lists(st.integers())))
def test_what_is_no_size_is_a_value_error_and_nothing_else(value):
    for parse in (parse_bytes, parse_count):
        try:
            size = parse(value)
        except ValueError as error:
            message = str(error)
        else:
            message = f"give a size {size}" if 1 <= size <= 2**60 else f"no such size: {size}"
        assert message.startswith("give a size ")


def test_a_billion_parameters_are_no_bytes():
    assert parse_count("7B") == 7 * 10**9
    assert parse_bytes("7B") == 7
    assert parse_bytes("0.9kB") == 900


class Budgeted(Config):
    """A setting that is a size."""

    most: Bytes | None = Field(None, description="Bytes.")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10 XB", "`most` is `10 XB`: give a size such as `10MB`"),
        ("-5MB", "`most` is `-5MB`: give a size such as"),
        ("1e400", "give a size such as"),
        (0, "`most` is `0`: give a size of 1 to 1152921504606846976"),
        ("9" * 40, "give a size of 1 to"),
        (True, "`most` is `True`; give a number"),
    ],
)
def test_a_setting_that_is_no_size_is_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        Budgeted.make({"most": value})
    assert Budgeted.make({"most": "9.5 MiB"}).most == 9_961_472
