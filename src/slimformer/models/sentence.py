"""Sentence encoders: how the outputs of a model become one vector, and the files beside it that say so.

The files are those of sentence-transformers: `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json` and
`config_sentence_transformers.json`. Any folder of a model may have them, whatever its weights look like.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from slimformer.errors import CheckpointError, describe
from slimformer.files import JsonError, as_path, read_json
from slimformer.models.weights import CONFIG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LENGTHS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"

#: Ways of pooling → the flag of each in `1_Pooling/config.json`, in the order in which several are joined.
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
#: The steps of a sentence encoder in their order; the last may be missing.
STEPS = ["Transformer", "Pooling", "Normalize"]
#: Types of JSON as messages call them.
NAMES = {dict: "table of settings", str: "text", bool: "switch (true or false)"}
#: Characters that the name of a file may have on most systems.
MAX_NAME = 255
#: Characters of a prompt; those of real models are a sentence or two.
MAX_PROMPT = 1 << 16
#: The steps of a sentence encoder, under the names that all versions of sentence-transformers know.
_TYPE = "sentence_transformers.models."


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence encoder makes one vector of a text.

    Args:
        pooling: Ways of pooling, names of `FLAGS`; the vectors of several are joined.
        normalize: Whether a vector is scaled to length 1.
        prompts: Name → what is put before a text.
        default_prompt: The prompt of a text for which none is asked; None for none.
        include_prompt: Whether tokens of the prompt are pooled too.
        max_length: Tokens a text is cut to; None for as many as the model takes.

    Example:
        >>> settings = SentenceSettings.read(models.resolve("minilm"))
        >>> settings.pooling, settings.normalize
        (('mean',), True)
    """

    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    max_length: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.pooling, str) or not isinstance(self.pooling, Sequence) or not self.pooling:
            raise CheckpointError(f"the pooling is `{describe(self.pooling)}`; give a tuple of: {', '.join(FLAGS)}")
        if self.max_length is not None and (type(self.max_length) is not int or self.max_length < 1):
            raise CheckpointError(f"texts are cut to `{describe(self.max_length)}` tokens; give a number from 1 on")
        for name in self.pooling:
            if name not in FLAGS:
                raise CheckpointError(f"there is no pooling `{name}`; known: {', '.join(FLAGS)}")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            known = ", ".join(f"`{name}`" for name in self.prompts) or "none"
            raise CheckpointError(f"there is no prompt `{self.default_prompt}`; the sentence encoder has {known}")

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """Read what a folder says; None where it is no sentence encoder.

        Raises:
            CheckpointError: Where the files are broken, or name a step beyond pooling and scaling to length 1.
        """
        return cls._parse(str(folder), lambda name: _file(as_path(folder) / name))

    @classmethod
    def of(cls, name: str | Path) -> Self | None:
        """Read what is recorded of a model by name: an alias, a folder or a Hub name."""
        from slimformer.models.names import resolve

        return cls.read(resolve(name))

    def write(self, folder: str | Path, width: int) -> None:
        """Write the files into a folder.

        Args:
            folder: The folder of a model.
            width: Width of its hidden states.
        """
        steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] * self.normalize)]
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": _TYPE + step}
            for index, (path, step) in enumerate(steps)
        ]
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        if self.pooling == tuple(name for name in FLAGS if name in self.pooling):
            pooling |= {flag: name in self.pooling for name, flag in FLAGS.items()}
        else:  # only newer versions can tell the order
            pooling = {"embedding_dimension": width, "pooling_mode": list(self.pooling)}
        if not self.include_prompt:
            pooling["include_prompt"] = False
        _write(Path(folder) / MODULES, modules)
        _write(Path(folder) / POOLING, pooling)
        if self.max_length is not None:
            _write(Path(folder) / LENGTHS, {"max_seq_length": self.max_length, "do_lower_case": False})
        if self.prompts:
            _write(Path(folder) / PROMPTS, {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt})

    @property
    def prompt(self) -> str:
        """What is put before a text for which no prompt is asked."""
        return "" if self.default_prompt is None else self.prompts[self.default_prompt]

    @classmethod
    def _parse(cls, source: str, read: Callable[[str], Any]) -> Self | None:
        modules = read(MODULES)
        if modules is None:
            return None
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{MODULES} of `{source}` is no list of modules; copy the model again")
        steps = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        unknown = [step for step in steps if step not in STEPS]
        if unknown or steps not in (STEPS[:2], STEPS):
            what = _wrong_steps(steps, unknown)
            raise CheckpointError(
                f"the sentence encoder `{source}` has {what}, which cannot be carried along; remove {MODULES} to take "
                "it for a plain model"
            )
        pooling = read(f"{_inside(modules[1].get('path', ''), source)}/config.json")
        if pooling is None:
            raise CheckpointError(f"the sentence encoder `{source}` lacks {POOLING}; copy the model again")
        lengths, prompts = read(LENGTHS), read(PROMPTS)
        fields = _Fields(source)
        pooling, lengths, prompts = (
            fields.expect(file, "content", {} if content is None else content, dict)
            for file, content in ((POOLING, pooling), (LENGTHS, lengths), (PROMPTS, prompts))
        )
        default, length = prompts.get("default_prompt_name"), lengths.get("max_seq_length")
        return cls(
            _ways(pooling, fields),
            "Normalize" in steps,
            fields.texts(PROMPTS, "prompts", prompts.get("prompts") or {}),
            None if default is None else fields.expect(PROMPTS, "default_prompt_name", default, str),
            fields.expect(POOLING, "include_prompt", pooling.get("include_prompt", True), bool),
            None if length is None else fields.count(LENGTHS, "max_seq_length", length),
        )


@dataclass(frozen=True)
class _Fields:
    """Refuses values of another type than the fields of a sentence encoder's files have.

    Args:
        source: What the user calls the model.
    """

    source: str

    def expect(self, file: str, field: str, value: Any, kind: type) -> Any:
        """A value of a type."""
        if type(value) is not kind:
            raise self.refusal(file, field, value, f"a {NAMES[kind]}")
        return value

    def count(self, file: str, field: str, value: Any) -> int:
        """A whole number from 1 on."""
        if type(value) is not int or value < 1:
            raise self.refusal(file, field, value, "a whole number from 1 on")
        return value

    def texts(self, file: str, field: str, value: Any) -> dict[str, str]:
        """An object of texts."""
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self.refusal(file, field, value, "an object of texts")
        if any(len(text) > MAX_PROMPT for text in value.values()):  # it is put before every text
            raise self.refusal(file, field, value, f"an object of texts of at most {MAX_PROMPT:,} characters")
        return value

    def refusal(self, file: str, field: str, value: Any, expected: str) -> CheckpointError:
        """What to raise where something else is expected."""
        return CheckpointError(
            f"{file} of the sentence encoder `{self.source}` has the {field} `{describe(value)}`, which is not "
            f"{expected}; mend it, or copy the model again"
        )


def _wrong_steps(steps: list[str], unknown: list[str]) -> str:
    """What is wrong with the steps of a sentence encoder."""
    if unknown:
        return f"a step `{unknown[0]}`"
    return "no pooling" if "Pooling" not in steps else f"the steps `{', '.join(steps)}`"


def _inside(path: Any, source: str) -> str:
    """The folder of a step, inside that of the model."""
    if isinstance(path, str) and len(path) < MAX_NAME and "\0" not in path:
        parts = PurePosixPath(path).parts
        if not PurePosixPath(path).is_absolute() and ".." not in parts:
            return path
    raise CheckpointError(
        f"{MODULES} of `{source}` has the path `{describe(path)}`, which is no folder inside the model's; mend it"
    )


def _ways(config: dict[str, Any], fields: _Fields) -> tuple[str, ...]:
    """The ways of pooling in a file of any version: one flag for each, or a name or a list of names."""
    named = config.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise fields.refusal(POOLING, "pooling_mode", named, "a name or a list of names")
        if len(set(names)) < len(names):  # each makes a vector as wide as the model
            raise fields.refusal(POOLING, "pooling_mode", named, "a list that names each way once")
        return tuple(names)
    flags = {key: value for key, value in config.items() if key.startswith("pooling_mode_")}
    for key, value in flags.items():
        if fields.expect(POOLING, key, value, bool) and key not in FLAGS.values():
            raise CheckpointError(f"there is no pooling `{key}`; known: {', '.join(FLAGS.values())}")
    if flags and not any(flags.values()):
        raise fields.refusal(POOLING, "pooling_mode", "none", f"one of {', '.join(FLAGS)}")
    return tuple(name for name, flag in FLAGS.items() if flags.get(flag)) or ("mean",)


def _file(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        content = read_json(path, CONFIG_BYTES)
    except (OSError, JsonError) as error:
        raise CheckpointError(f"`{path}` is not valid JSON: {error}; copy the model again") from error
    if content is None:
        raise CheckpointError(f"`{path}` holds null and nothing else; copy the model again")
    return content


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
