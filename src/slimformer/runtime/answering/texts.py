"""Texts as tokens, by the tokenizer of a folder."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, DataError, describe
from slimformer.panics import panics_raised
from slimformer.runtime.checkpoint import EngineError, read_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from slimformer.runtime.encoder import NativeEncoder
    from slimformer.runtime.onnx import Array

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
#: What `truncation` may say beside a switch: texts are cut in that way.
CUT = (None, True, "longest_first")


class TextReader:
    """The tokenizer of a folder, and how long texts may become.

    Args:
        folder: Where it lies.
        encoder: Reads its tokens.
        limits: Tokens a text is cut to; the least of those that are given, and of what folder and model take, counts.
        window: Whether texts are pairs of a question and a context, which is read in windows that overlap.
    """

    def __init__(
        self, folder: Path, encoder: NativeEncoder, limits: Sequence[int | None] = (), *, window: bool = False
    ) -> None:
        self.folder = folder
        self.encoder = encoder
        self.tokenizer = read_tokenizer(folder)
        self.tokenizer.no_padding()
        self.settings = read_object(folder, TOKENIZER_SETTINGS, optional=True)
        recorded = self.settings.get("model_max_length")
        of_folder = recorded if isinstance(recorded, int) and recorded > 0 else None
        self.max_length: int = min(limit for limit in (*limits, of_folder, encoder.longest) if limit is not None)
        special: int = self.tokenizer.num_special_tokens_to_add(is_pair=True)
        if self.max_length <= special:
            raise ConfigError(f"`max_length` is {self.max_length}, and {special} tokens stand around texts; give more")
        self._special = special
        if window:
            # A question by itself has nothing behind it that could be cut, and a long one would be an error.
            self._whole = deepcopy(self.tokenizer)
            self._whole.no_truncation()
            # What is left to a context beside the longest question has to be more than the overlap.
            overlap = min(128, max(0, self.max_length - self.longest_question - special - 1))
            self.tokenizer.enable_truncation(self.max_length, stride=overlap, strategy="only_second")
        else:
            side = "left" if self.settings.get("truncation_side") == "left" else "right"
            self.tokenizer.enable_truncation(self.max_length, direction=side)

    @property
    def longest_question(self) -> int:
        """Tokens of a question, which leaves half of a window to the context, and one token at least."""
        return min(self.max_length // 2, self.max_length - self._special - 1)

    def question_length(self, question: str) -> int:
        """Tokens of a question by itself, however long it is."""
        with self._failures():
            return len(self._whole.encode(question, add_special_tokens=False).ids)

    @property
    def unknown(self) -> int | None:
        """The token that stands for what the vocabulary lacks, if there is one."""
        named = self.settings.get("unk_token", getattr(self.tokenizer.model, "unk_token", None))
        name = named.get("content") if isinstance(named, dict) else named
        return self.tokenizer.token_to_id(name) if isinstance(name, str) else None

    def read(self, texts: Sequence[Any], truncation: Any = None) -> list[Any]:
        """The tokens of texts.

        Args:
            texts: Texts or pairs of them.
            truncation: As for a tokenizer of Transformers: False refuses what is too long, else texts are cut.
        """
        if not any(truncation is each or truncation == each for each in (*CUT, False)):
            raise ConfigError(
                f"`truncation` is `{describe(truncation)}`, and the engine cuts the longer of two texts first; give "
                "True, or False to refuse long texts"
            )
        with self._failures():
            read: list[Any] = self.tokenizer.encode_batch(list(texts))
        for text, each in zip(texts, read, strict=True):
            if truncation is False and each.overflowing:
                raise DataError(
                    f"`{describe(text)}` has more than {self.max_length} tokens; cut it, or leave out `truncation`"
                )
        return read

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            with panics_raised():
                yield
        except Exception as error:  # what the package raises has no class of its own
            raise DataError(f"the tokenizer of `{self.folder}` fails at one of the texts: {error}; mend it") from error

    def run(self, read: Sequence[Any]) -> Array:
        """What the encoder makes of tokens."""
        types = [each.type_ids for each in read] if self.encoder.reads_types else None
        return self.encoder.run([each.ids for each in read], types)


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder."""
    from tokenizers import Tokenizer

    try:
        with panics_raised():
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            tokenizer.num_special_tokens_to_add(is_pair=True)
    except Exception as error:  # what the package raises has no class of its own
        raise EngineError(f"`{folder}` has no {TOKENIZER} that can be read ({error}); copy it again") from error
    return tokenizer
