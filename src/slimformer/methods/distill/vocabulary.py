"""Whether two models mean the same by a token number."""

from __future__ import annotations

from typing import Any

from slimformer.errors import ConfigError

SPECIAL = ("cls_token", "sep_token", "pad_token", "bos_token", "eos_token", "unk_token", "mask_token")


def check_same_tokens(teacher: Any, student: Any) -> None:
    """Refuse tokenizers that differ in any token; sizes alone say nothing.

    Args:
        teacher: The teacher's tokenizer.
        student: The student's.
    """
    theirs, ours = teacher.get_vocab(), student.get_vocab()
    differing = sorted(
        (number for token, number in theirs.items() if ours.get(token) != number),
    )
    missing = sorted(number for token, number in ours.items() if token not in theirs)
    if differing or missing:
        number = (differing or missing)[0]
        by_number = [{number: token for token, number in vocabulary.items()} for vocabulary in (theirs, ours)]
        said, heard = (f"`{names[number]}`" if number in names else "nothing" for names in by_number)
        raise ConfigError(
            f"teacher and student have different vocabularies: token {number} is {said} to the teacher and {heard} to "
            f"the student ({len(differing) + len(missing)} differ); take a student with the teacher's tokenizer"
        )
    for name in SPECIAL:
        one, other = getattr(teacher, name, None), getattr(student, name, None)
        if one != other:
            raise ConfigError(
                f"teacher and student have different special tokens: `{name}` is `{one}` to the teacher and `{other}` "
                "to the student; take a student with the teacher's tokenizer"
            )
