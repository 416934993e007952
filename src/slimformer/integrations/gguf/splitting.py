"""The rules of a tokenizer that llama.cpp knows by a name or a switch: how texts are cleaned and split."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from slimformer.errors import ArtifactError, shorten

#: Regular expressions that split texts before bytes are merged, and what llama.cpp calls the rules; the second has
#: numbers of up to three digits, the first of one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {_WORDS % "": "qwen2", _WORDS % "{1,3}": "llama-bpe"}
BLANK = "\u2581"


def byte_split(rules: dict[str, Any]) -> str:
    """What llama.cpp calls the rules by which a text is split before bytes are merged.

    Raises:
        ArtifactError: Where it has no such rules.
    """
    steps = _steps(rules, "pre_tokenizer", "pretokenizers")
    last = steps[-1] if steps else {}
    clean = all(step.get("type") == "NFC" for step in _steps(rules, "normalizer", "normalizers"))
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space") and clean:
        name = _named(steps[:-1], bool(last.get("use_regex", True)))
        # Whole words of the vocabulary are taken unmerged by rules of that name, and by no others.
        if name is not None and bool(rules["model"].get("ignore_merges")) == (name == "llama-bpe"):
            return name
    raise _refusal(rules, "pre_tokenizer")


def _named(before: list[dict[str, Any]], splits: bool) -> str | None:
    if splits and not before:
        return "gpt-2"
    if splits and len(before) == 1 and before[0].get("type") == "Digits" and before[0].get("individual_digits"):
        return "smollm"
    if not splits and len(before) == 1 and before[0].get("type") == "Split":
        step = before[0]
        plain = step.get("behavior") == "Isolated" and not step.get("invert")
        return _PATTERNS.get(step["pattern"].get("Regex", "")) if plain else None
    return None


def space_prefix(rules: dict[str, Any]) -> bool:
    """Whether a blank is put before a text, where blanks become a character of their own.

    Raises:
        ArtifactError: Where the text is cleaned or split in another way than llama.cpp does.
    """
    normalizing = _steps(rules, "normalizer", "normalizers")
    cleaning = [step for step in normalizing if not _is_blank(step)]
    written = len(cleaning) < len(normalizing)  # blanks, as the character that stands for them
    prepends = [step for step in cleaning if step.get("type") == "Prepend"]
    if any(step not in prepends and step.get("type") != "Precompiled" and not _squeezes(step) for step in cleaning):
        raise _refusal(rules, "normalizer")
    splitting = _steps(rules, "pre_tokenizer", "pretokenizers")
    metaspaces = [step for step in splitting if step.get("type") == "Metaspace"]
    if not written and not metaspaces:
        raise _refusal(rules, "normalizer")
    others = [step for step in splitting if step not in metaspaces and step.get("type") != "WhitespaceSplit"]
    # Gemma splits at blanks, of which none are left by then.
    if any(not written or not _splits_at_blanks(step) for step in others):
        raise _refusal(rules, "pre_tokenizer")
    return bool(prepends) or any(step.get("prepend_scheme", "always") != "never" for step in metaspaces)


def merged_space_prefix(rules: dict[str, Any]) -> bool:
    """The same before characters are merged, where llama.cpp neither takes blanks together nor cleans by a table.

    Raises:
        ArtifactError: Where the text is cleaned or split in another way than llama.cpp does.
    """
    if precompiled(rules) is not None or any(map(_squeezes, _steps(rules, "normalizer", "normalizers"))):
        raise _refusal(rules, "normalizer")
    if squeezes(rules):
        raise _refusal(rules, "pre_tokenizer")
    return space_prefix(rules)


def squeezes(rules: dict[str, Any]) -> bool:
    """Whether several blanks count as one."""
    splitting = _steps(rules, "pre_tokenizer", "pretokenizers")
    cleaning = _steps(rules, "normalizer", "normalizers")
    return any(step.get("type") == "WhitespaceSplit" for step in splitting) or any(map(_squeezes, cleaning))


def precompiled(rules: dict[str, Any]) -> bytes | None:
    """The table by which SentencePiece cleans a text; None where there is none."""
    for step in _steps(rules, "normalizer", "normalizers"):
        if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
            return b64decode(step["precompiled_charsmap"])
    return None


def wordpiece_rules(rules: dict[str, Any]) -> dict[str, bool]:
    """How a text is cleaned before words are cut into pieces.

    Raises:
        ArtifactError: Where that is another way than BERT's.
    """
    (step, *others) = _steps(rules, "normalizer", "normalizers") or [{}]
    if others or step.get("type") != "BertNormalizer" or not step.get("handle_chinese_chars", True):
        raise _refusal(rules, "normalizer")
    if [each.get("type") for each in _steps(rules, "pre_tokenizer", "pretokenizers")] != ["BertPreTokenizer"]:
        raise _refusal(rules, "pre_tokenizer")
    if rules["model"].get("continuing_subword_prefix") != "##":
        raise ArtifactError(
            f"pieces inside a word begin with `{rules['model'].get('continuing_subword_prefix')}`, and llama.cpp takes "
            "`##` for granted; export as ONNX"
        )
    lowercase = bool(step.get("lowercase"))
    strip = step.get("strip_accents")
    return {"normalizer.lowercase": lowercase, "normalizer.strip_accents": lowercase if strip is None else strip}


def _steps(rules: dict[str, Any], part: str, inner: str) -> list[dict[str, Any]]:
    """The steps of a part, those of a sequence one by one."""
    content = rules.get(part)
    if content is None:
        return []
    if content.get("type") != "Sequence":
        return [content]
    return [step for each in content[inner] for step in _steps({part: each}, part, inner)]


def _is_blank(step: dict[str, Any]) -> bool:
    """Whether a step writes blanks as the character that stands for them."""
    return step.get("type") == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == BLANK


def _splits_at_blanks(step: dict[str, Any]) -> bool:
    return step.get("type") == "Split" and step.get("pattern") == {"String": " "}


def _squeezes(step: dict[str, Any]) -> bool:
    return step.get("type") == "Replace" and step.get("pattern") == {"Regex": " {2,}"}


def _refusal(rules: dict[str, Any], part: str) -> ArtifactError:
    seen = shorten(json.dumps(rules.get(part), ensure_ascii=False))
    return ArtifactError(
        f"the tokenizer has the {part} `{seen}`, for which llama.cpp has no rules that are known here, so it would "
        "make other tokens; export as ONNX"
    )
