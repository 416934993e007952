"""The unlabelled examples of post-training: those that calibrate or teach, and those held out to compare on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.corpus import ImageCorpus, open_images
from slimformer.corpus.source import SequentialSource
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.methods.corpus import example_length
from slimformer.methods.quantize.post_training.calibration import batches_of
from slimformer.models.autoencoder import hides_patches
from slimformer.tasks.images import check_image_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slimformer.corpus import Corpus, Examples, Stream
    from slimformer.inference.source import Source
    from slimformer.methods.quantize.config import QuantizeConfig
    from slimformer.methods.quantize.post_training.calibration import Batch

#: Tokens of a text unless given, examples that are compared on at most, and how many of them at once.
LENGTH, COMPARED, BATCH = 128, 128, 16
#: One image in so many is held out.
HELD_OUT = 10
#: Settings that are about text alone.
OF_TEXT = ("text_column", "header", "documents", "max_length")


class Unlabelled:
    """A corpus of text or images, some of it held out.

    Args:
        config: Where it lies, and how much of it calibrates.
        source: The model.
        processor: The model's tokenizer or image processor.
    """

    def __init__(self, config: QuantizeConfig, source: Source, processor: Any) -> None:
        assert config.corpus is not None
        self.config = config
        self.processor = processor
        self.whole: Corpus | ImageCorpus
        self.length: int | None = None
        if models.sees_images(source.config):
            self._refuse_texts(source)
            if hides_patches(source.config):
                raise CheckpointError(
                    f"`{source.name}` hides patches at random, and answers otherwise each time; give a plain ViT"
                )
            check_image_size(processor, source.config, source.name)
            self.whole = open_images(config.corpus)
        else:
            limits = (models.positions(source.config), getattr(processor, "model_max_length", None))
            self.length = example_length(config.max_length, *limits, default=LENGTH)
            self.whole = config.open_texts()
            for each in self.whole.sources:
                if isinstance(each, SequentialSource):
                    raise DataError(
                        f"`{each.name}` {each.reason}, and a few hundred texts are enough here; put some into a plain "
                        "file"
                    )
        if not self._count(held_out=True, most=1) or not self._count(held_out=False, most=1):
            raise DataError(
                "the corpus has too few different examples to hold some out and compare on; give more of them"
            )

    def digest(self) -> str:
        """What tells the corpus from others."""
        return self.whole.digest()

    def calibration(self) -> Examples:
        """The examples that are calibrated on; each once, however few there are."""
        return self._stream(held_out=False).first(self._count(held_out=False, most=self.config.calibration))

    def held_out(self) -> list[Batch]:
        """Batches of examples that are compared on."""
        examples = self._stream(held_out=True).first(self._count(held_out=True, most=COMPARED))
        return batches_of(examples, BATCH)

    def training(self, count: int, folder: Path) -> Examples:
        """Examples to learn from, as many as asked for; they come again where there are fewer."""
        return self._stream(held_out=False, memo=folder / "corpus.jsonl").first(count)

    def collator(self) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """What makes batches to learn from."""
        return self._stream(held_out=False).collator()

    def _stream(self, *, held_out: bool, memo: Path | None = None) -> Stream:
        part = self._part(held_out)
        if isinstance(part, ImageCorpus):
            return part.stream(self.processor, seed=self.config.seed)
        assert self.length is not None
        return part.stream(self.processor, self.length, seed=self.config.seed, pack=False, memo=memo)

    def _part(self, held_out: bool) -> Corpus | ImageCorpus:
        if not isinstance(self.whole, ImageCorpus):
            return self.whole.part(held_out=held_out)
        numbered = enumerate(self.whole.images)
        images = [image for number, image in numbered if (number % HELD_OUT == HELD_OUT - 1) == held_out]
        return ImageCorpus(images, self.whole.files)

    def _count(self, *, held_out: bool, most: int) -> int:
        part = self._part(held_out)
        if isinstance(part, ImageCorpus):
            return min(len(part), most)
        return sum(1 for _ in islice(part.documents(), most))

    def _refuse_texts(self, source: Source) -> None:
        for name in OF_TEXT:
            value = getattr(self.config, name)
            if value != type(self.config).model_fields[name].default:
                raise ConfigError(
                    f"`{name}` is {value}, which is for text, and `{source.name}` sees images; leave it out"
                )
