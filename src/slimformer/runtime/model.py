"""An encoder with what reads its inputs on the native kernels: NumPy and `tokenizers`, neither torch nor Transformers.

Images are opened by Pillow, which is imported where there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.counts import check_count
from slimformer.errors import ConfigError
from slimformer.files import as_path
from slimformer.models.sentence import SentenceSettings
from slimformer.runtime.answering import images, labels, spans, vectors
from slimformer.runtime.answering.inputs import as_single_texts, as_texts, refuse_settings
from slimformer.runtime.answering.tagging import Tagger
from slimformer.runtime.answering.texts import TextReader
from slimformer.runtime.encoder import NativeEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from slimformer.runtime.onnx import Array

#: What models without a head, and those for questions, give.
HIDDEN, SPANS = ("last_hidden_state",), ("start_logits", "end_logits")
#: Says that a setting was not given, where None means something.
UNSAID: Any = object()
#: Settings of pipelines and of sentence-transformers → values that say what the engine does anyway.
DONE_ANYWAY = {
    "padding": (True, False, None, "longest"),
    "device": (None, "cpu", -1),
    "convert_to_numpy": (True,),
    "convert_to_tensor": (False,),
    "output_value": ("sentence_embedding",),
    "precision": ("float32",),
    "is_split_into_words": (False,),
    **dict.fromkeys(("pool", "chunk_size", "stride", "timeout", "doc_stride", "max_length", "max_seq_len"), (None,)),
}


class NativeModel:
    """An encoder that is asked with texts, or with images. Any number of threads may share it.

    `predict`, which is also what calling it does, answers as a pipeline of Transformers does: that for text
    classification, token classification, question answering or image classification, as the head of the model is.
    `encode` answers as a `SentenceTransformer` does, where there is no head.

    Args:
        folder: A model that `NativeEncoder` runs, with its `tokenizer.json` or `preprocessor_config.json`.
        threads: Threads of one forward; all that the machine has when not given.
        max_length: Tokens a text is cut to; what the folder says, or as many as the model takes, when not given. Of a
            question with its context as many are read at once; 384 at most when not given.
        size: Which size of an elastic model, such as `S` or one for each block; the largest when not given.
        encoder: The model, where the folder alone does not hold it; then `size` is not read.
        processor: Where the tokenizer or image processor lies, where that is another folder.

    Example:
        >>> NativeModel("sentiment-ternary").predict("a film to remember")
        [{'label': 'positive', 'score': 0.98}]
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        max_length: int | None = None,
        *,
        size: str | None = None,
        encoder: NativeEncoder | None = None,
        processor: Path | None = None,
    ) -> None:
        self.folder = as_path(folder)
        self.encoder = NativeEncoder(folder, threads, size=size) if encoder is None else encoder
        asked = None if max_length is None else check_count("max-length", max_length)
        place = processor or self.folder
        self._predict = self._pipeline()
        self._embedder: vectors.Embedder | None = None
        if self.encoder.reads_images:
            self._images = images.ImageReader(place)
            return
        self.sentence = SentenceSettings.read(self.folder)
        of_sentence = None if self.sentence is None else self.sentence.max_length
        window = self.encoder.outputs == SPANS
        usual = spans.WINDOW if window and asked is None else None
        self.reader = TextReader(place, self.encoder, (asked, of_sentence, usual), window=window)
        self.tokenizer = self.reader.tokenizer
        self.max_length = self.reader.max_length
        if self.encoder.outputs == HIDDEN:
            self._embedder = vectors.Embedder(self.folder, self.reader, self.sentence or SentenceSettings())

    def _pipeline(self) -> Callable[..., Any] | None:
        """What answers, by the head of the model; None where it has none."""
        if self.encoder.outputs == SPANS:
            return self._find_spans
        if self.encoder.outputs != ("logits",):
            return None
        if self.encoder.reads_images:
            return self._label_images
        return self._label_texts if self.encoder.pools else self._find_entities

    def __call__(self, *asked: Any, **settings: Any) -> Any:
        """Answer as `predict` does."""
        return self.predict(*asked, **settings)

    def predict(self, asked: Any = None, top_k: Any = UNSAID, batch_size: int = 32, **settings: Any) -> Any:
        """Answer as the pipeline of Transformers does that such a model belongs to.

        Args:
            asked: One input or several. For labels of texts these are texts; a tuple of two, or a dict of `text` and
                `text_pair`, is read as a pair. For entities they are texts. For spans they are questions with contexts:
                dicts of `question` and `context`, tuples of the two, or these as arguments of their own. For labels of
                images they are paths, images of Pillow, or arrays of uint8, [height, width, 3].
            top_k: How many labels or spans of each input, the best first; None for all labels. Without it there is one
                of a text and of a question, and five of an image.
            batch_size: Inputs of one forward; changes speed and memory only.
            settings: Others that the pipeline has: `truncation` and `function_to_apply` for texts,
                `function_to_apply` for images, `aggregation_strategy` and `ignore_labels` for entities,
                `max_answer_len`, `handle_impossible_answer` and `align_to_words` for spans.

        Returns:
            What the pipeline returns, such as a label with its score for each text.

        Raises:
            ConfigError: Where the model has no such head, or where the engine does not read a setting; the message
                says what to do instead.
        """
        check_count("batch-size", batch_size)
        if self._predict is None:
            way = "take hidden states from `encoder.run_images`" if self._embedder is None else "ask it with `encode`"
            raise ConfigError(f"`{self.folder}` has no head that gives labels; {way}")
        return self._predict(asked, top_k, batch_size, settings)

    def encode(
        self,
        sentences: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **settings: Any,
    ) -> Array:
        """Vectors of texts, in NumPy.

        Args:
            sentences: One text, which gives one vector, or several.
            prompt_name: Which of the folder's prompts stands before each text.
            prompt: What stands before each text; the usual prompt of the folder, if any, when neither is given.
            batch_size: Texts of one forward; changes speed and memory only.
            show_progress_bar: Whether tqdm draws how far it is.
            normalize_embeddings: Whether vectors are scaled to length 1 even where the folder does not say so.
            truncate_dim: Dimensions that are kept of each vector; all when not given.
            settings: Others of sentence-transformers, which are refused unless they say what is done anyway.
        """
        embedder = self._embedder
        if embedder is None:
            reason = "has a head and gives no vectors; ask it with `predict`"
            if self._predict is None:
                reason = "reads images and gives no vectors of texts; take hidden states from `encoder.run_images`"
            raise ConfigError(f"`{self.folder}` {reason}")
        refuse_settings(settings, DONE_ANYWAY)
        check_count("batch-size", batch_size)
        if truncate_dim is not None:
            check_count("truncate-dim", truncate_dim)
        texts = as_single_texts(sentences)
        before = embedder.prompt(prompt_name, prompt)
        batches = vectors.progress(range(0, len(texts), batch_size), show_progress_bar)
        table = embedder.vectors(texts, before, batches, batch_size)
        if embedder.settings.normalize:
            table = vectors.normalized(table)
        table = table[:, :truncate_dim]
        if normalize_embeddings:
            table = vectors.normalized(table)
        return table[0] if isinstance(sentences, str) else table

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Array:
        """How alike vectors are, [vectors, others], as the folder says that it is measured: by the cosine as a rule."""
        return vectors.similarity(self.folder, embeddings1, embeddings2)

    def _label_texts(self, asked: Any, top_k: Any, batch_size: int, settings: dict[str, Any]) -> list[Any] | Any:
        truncation, function = settings.pop("truncation", None), settings.pop("function_to_apply", None)
        refuse_settings(settings, DONE_ANYWAY)
        texts = as_texts(asked)
        firsts = range(0, len(texts), batch_size)
        rows = (self._run(texts[first : first + batch_size], truncation)[1] for first in firsts)
        answers = self._ranked(top_k, 1, rows, function)
        if top_k is not UNSAID:
            return answers[0] if isinstance(asked, str | tuple | dict) else answers
        best = [answer[0] for answer in answers]
        return best[0] if isinstance(asked, dict) else best

    def _label_images(self, asked: Any, top_k: Any, batch_size: int, settings: dict[str, Any]) -> list[Any]:
        function = settings.pop("function_to_apply", None)
        refuse_settings(settings, DONE_ANYWAY)
        listed, alone = images.listed(asked)
        firsts = range(0, len(listed), batch_size)
        rows = (self.encoder.run_images(self._images.read(listed[first : first + batch_size])) for first in firsts)
        answers = self._ranked(top_k, 5, rows, function, regress=False)
        return answers[0] if alone else answers

    def _ranked(
        self, top_k: Any, usual: int, rows: Iterable[Array], function: str | None, *, regress: bool = True
    ) -> list[list[dict[str, Any]]]:
        """The best labels of all rows."""
        count = usual if top_k is UNSAID else top_k
        labels.check_top_k(count)
        scores = labels.scores(np.concatenate(list(rows)), self.encoder.config, function, regress=regress)
        return labels.best(scores, labels.names(self.encoder.config, scores.shape[1]), count)

    def _find_entities(self, asked: Any, top_k: Any, batch_size: int, settings: dict[str, Any]) -> list[Any]:
        strategy, ignored = settings.pop("aggregation_strategy", "none"), settings.pop("ignore_labels", None)
        truncation = settings.pop("truncation", None)
        refuse_settings({**settings, **({} if top_k is UNSAID else {"top_k": top_k})}, DONE_ANYWAY)
        texts = as_single_texts(asked)
        tagger: Tagger | None = None
        answers = []
        for first in range(0, len(texts), batch_size):
            batch = texts[first : first + batch_size]
            read, rows = self._run(batch, truncation)
            if tagger is None:
                known = labels.names(self.encoder.config, rows.shape[1])
                tagger = Tagger(self.reader, known, strategy, ["O"] if ignored is None else ignored)
            logits = np.split(rows, np.cumsum([len(each.ids) for each in read])[:-1])
            answers += [tagger.entities(*each) for each in zip(batch, read, logits, strict=True)]
        return answers[0] if isinstance(asked, str) else answers

    def _find_spans(self, asked: Any, top_k: Any, batch_size: int, settings: dict[str, Any]) -> list[Any] | Any:
        question, context = settings.pop("question", None), settings.pop("context", None)
        limits = spans.SpanLimits(
            1 if top_k is UNSAID else top_k,
            settings.pop("max_answer_len", 15),
            bool(settings.pop("handle_impossible_answer", False)),
            bool(settings.pop("align_to_words", True)),
        )
        refuse_settings(settings, DONE_ANYWAY)
        pairs, alone = spans.questions(asked, question, context)
        answers = spans.SpanFinder(self.reader, batch_size).answers(pairs, limits)
        answered = [answer[0] if len(answer) == 1 else answer for answer in answers]
        return answered[0] if alone else answered

    def _run(self, texts: list[Any], truncation: Any) -> tuple[list[Any], Array]:
        """Tokens of texts, and what the encoder makes of them."""
        read = self.reader.read(texts, truncation)
        return read, self.reader.run(read)
