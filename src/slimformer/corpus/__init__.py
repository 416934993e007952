"""Corpora: unlabelled text and images, of any size, to learn from without labels.

A corpus is read as a stream whose n-th example is a pure function of the corpus, the tokenizer, the settings and n.
Importing this package is quick; torch, transformers and datasets are loaded when first used.
"""

from slimformer.corpus.corpus import Corpus
from slimformer.corpus.images import ImageCorpus, ImageStream, open_images
from slimformer.corpus.mixing import Mixture
from slimformer.corpus.opening import open_corpus, open_mixture, open_stream
from slimformer.corpus.source import Source
from slimformer.corpus.stream import Examples, Stream, TextStream

__all__ = [
    "Corpus",
    "Examples",
    "ImageCorpus",
    "ImageStream",
    "Mixture",
    "Source",
    "Stream",
    "TextStream",
    "open_corpus",
    "open_images",
    "open_mixture",
    "open_stream",
]
