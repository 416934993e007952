"""A decoder with its tokenizer on the native kernels: NumPy and `tokenizers`, neither torch nor Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from slimformer.counts import check_count
from slimformer.errors import ConfigError, DataError, describe
from slimformer.files import as_path
from slimformer.panics import panics_raised
from slimformer.runtime.answering.texts import read_tokenizer
from slimformer.runtime.checkpoint import CONFIG, read_object
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.decoding.architecture import decodes
from slimformer.runtime.decoding.settings import GenerationSettings
from slimformer.runtime.model import NativeModel

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.runtime.decoding.choosing import Sampling
    from slimformer.sizes.decoding.draft import Draft
    from slimformer.sizes.naming import Sized


#: What is asked with texts.
NativeTexts: TypeAlias = "NativeModel | NativeGenerator"


class NativeGenerator:
    """A decoder that goes on with texts. Any number of threads may share it.

    Calling it answers as `pipeline("text-generation")` of Transformers does.

    Args:
        folder: A model that `NativeDecoder` runs, with its `tokenizer.json`.
        threads: Threads of one forward; all that the machine has when not given.
        size: The size of an elastic model that writes where none is asked for; the largest when not given.

    Example:
        >>> NativeGenerator("stories15M")("Once upon a time", max_new_tokens=7)
        [{'generated_text': 'Once upon a time, there was a little girl named'}]
    """

    def __init__(self, folder: str | Path, threads: int | None = None, size: Sized | None = None) -> None:
        self.folder = as_path(folder)
        self.decoder = NativeDecoder(folder, threads)
        self.decoder.check_size(size)
        self.size = size
        self.tokenizer = read_tokenizer(self.folder)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.settings = GenerationSettings.read(self.folder, self.decoder.config)

    def __call__(
        self,
        texts: str | Sequence[str],
        max_new_tokens: int = 256,
        do_sample: bool | None = None,
        sampling: Sampling | None = None,
        return_full_text: bool = True,
        batch_size: int = 8,
        size: Sized | None = None,
        draft: Draft | Sized | None = None,
    ) -> list[Any]:
        """Go on with texts.

        Args:
            texts: One text or several.
            max_new_tokens: Tokens that are added at most; fewer where the model takes no more.
            do_sample: Whether tokens are drawn; as `generation_config.json` says when not given.
            sampling: How they are drawn; as `generation_config.json` says when not given.
            return_full_text: Whether the text itself stands before what is added.
            batch_size: Texts of one forward; changes speed and memory only.
            size: The size of an elastic model that writes; that of the opening by default.
            draft: A smaller size that writes ahead, and how, as for `NativeDecoder.generate`.

        Returns:
            `[{"generated_text": …}]` for one text, a list of such for several.
        """
        listed = [texts] if isinstance(texts, str) else list(texts) if isinstance(texts, Sequence) else []
        if not listed or not all(isinstance(each, str) for each in listed):
            raise DataError(f"`{describe(texts)}` is no text; give at least one")
        check_count("batch-size", batch_size)
        prompts = self._read(listed)
        drawn = self._sampling(do_sample, sampling)
        chosen = self.size if size is None else size
        answers = []
        for first in range(0, len(prompts), batch_size):
            batch = prompts[first : first + batch_size]
            added = self.decoder.generate(batch, max_new_tokens, self.settings.stop, drawn, size=chosen, draft=draft)
            for text, prompt, tokens in zip(listed[first:], batch, added, strict=False):
                # Decoded together: a tokenizer may leave out a space where a text begins.
                new = self._text([*prompt, *tokens])[len(self._text(prompt)) :]
                answers.append([{"generated_text": text + new if return_full_text else new}])
        return answers[0] if isinstance(texts, str) else answers

    def _sampling(self, do_sample: bool | None, sampling: Sampling | None) -> Sampling | None:
        from slimformer.runtime.decoding.choosing import Sampling

        if do_sample is False:
            if sampling is not None:
                raise ConfigError("`do_sample` is False and a `sampling` is given; leave one out")
            return None
        return sampling or self.settings.sampling or (Sampling() if do_sample else None)

    def _read(self, texts: list[str]) -> list[list[int]]:
        try:
            with panics_raised():
                prompts = [each.ids for each in self.tokenizer.encode_batch(texts)]
        except (ValueError, TypeError) as error:
            raise DataError(f"the tokenizer of `{self.folder}` fails at one of the texts: {error}; mend it") from error
        for text, prompt in zip(texts, prompts, strict=True):
            if not 0 < len(prompt) < self.decoder.longest:
                raise DataError(
                    f"`{describe(text)}` has {len(prompt)} tokens, and text and answer 1 to {self.decoder.longest} "
                    "together; give another text"
                )
        return prompts

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def open_texts(folder: Path, max_length: int | None = None, size: str | None = None) -> NativeTexts:
    """A model with what reads its inputs: a decoder, or an encoder that cuts texts to so many tokens."""
    if decodes(read_object(folder, CONFIG)):
        return NativeGenerator(folder, size=size)
    return NativeModel(folder, max_length=max_length, size=size)
