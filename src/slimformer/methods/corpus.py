"""What methods that learn from a corpus share: lengths, passes turned into steps, teachers and what is kept of them."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from slimformer.config import Config, PositiveNumber
from slimformer.errors import ConfigError
from slimformer.methods.output import is_main
from slimformer.train.options import StepOptions, TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slimformer.objectives import TeacherCache, Weighted

#: Tokens of an example unless given, and gibibytes that a cache may take.
LENGTH, CACHE = 512, 16.0
#: Seconds between two lines that say how far the making of tokens is.
TELL_EVERY = 5.0
#: Tokens that mean something to a model, by the names tokenizers give them.
SPECIAL = ("cls_token", "sep_token", "pad_token", "bos_token", "eos_token", "unk_token", "mask_token")


class CacheOptions(Config):
    """Where what a teacher computed is kept, and how much of it."""

    teacher_cache: str | None = Field(
        None, description="Folder to keep what a teacher computed, for later passes or runs over the same examples."
    )
    teacher_cache_limit: PositiveNumber = Field(
        CACHE, description="Gibibytes that `--teacher-cache` may take; what does not fit is computed every time."
    )

    def idle_without_cache(self) -> dict[str, tuple[bool, str]]:
        """Settings that change nothing without a cache, and what they need."""
        return {"teacher_cache_limit": (self.teacher_cache is None, "`teacher_cache`")}


def open_cache(config: CacheOptions, terms: Iterable[Weighted], teacher: Callable[[], str]) -> TeacherCache | None:
    """The cache of a run; None where it has none.

    Args:
        config: The settings.
        terms: What is learned.
        teacher: What tells this teacher from others; asked for only where there is a cache.
    """
    from slimformer.objectives import TeacherCache
    from slimformer.objectives.objective import union

    if config.teacher_cache is None:
        return None
    names = union(each.term.teacher_request() for each in terms).names
    limit = int(config.teacher_cache_limit * 2**30)
    return TeacherCache(
        config.teacher_cache, names, teacher(), limit=limit, processes=int(os.environ.get("WORLD_SIZE", "1"))
    )


def token_progress(quiet: bool) -> Callable[[int, int], None] | None:
    """Says every few seconds how far the making of tokens is, and how long it will take.

    Args:
        quiet: Whether to say nothing.
    """
    if quiet or not is_main():
        return None
    began = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TELL_EVERY:
            last = now
            left = (now - began) * (total - done) / done
            sys.stderr.write(f"tokens: {done / 1e6:,.0f} of about {total / 1e6:,.0f} MB, {left:,.0f} seconds left\n")

    return tell


def example_length(length: int | None, *limits: int | None, default: int = LENGTH) -> int:
    """Tokens of an example: as told, else the default, or as many as all that read it take.

    Args:
        length: The setting.
        limits: How many tokens each model or tokenizer takes; None where that is any number.
        default: What is taken where nothing is told.
    """
    known = [limit for limit in limits if limit is not None]
    if length is not None and known and length > min(known):
        most = min(known)
        raise ConfigError(f"`max_length` is {length}, and the model takes {most} tokens; give {most} or less")
    return length or min([default, *known])


def training_options(config: Any, passes: float | None, epoch_size: Callable[[], int]) -> TrainingOptions:
    """How to train: as given, with passes over the corpus turned into steps.

    Args:
        config: The settings, those of `StepOptions` among them.
        passes: How many; None where steps are given.
        epoch_size: Examples of a pass.
    """
    values = {name: getattr(config, name) for name in StepOptions.model_fields}
    if passes is not None:
        values["max_steps"] = math.ceil(passes * epoch_size() / config.batch_size)
    return TrainingOptions.make(values)


def check_same_tokens(teacher: Any, student: Any) -> None:
    """Refuse tokenizers that differ in any token; sizes alone say nothing.

    Args:
        teacher: The teacher's tokenizer.
        student: The student's.
    """
    expected, actual = teacher.get_vocab(), student.get_vocab()
    differing = sorted(number for token, number in expected.items() if actual.get(token) != number)
    missing = sorted(number for token, number in actual.items() if token not in expected)
    if differing or missing:
        number = (differing or missing)[0]
        by_number = [{number: token for token, number in vocabulary.items()} for vocabulary in (expected, actual)]
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
