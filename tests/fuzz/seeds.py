"""Where fuzzing starts from: a small whole example of everything that is read."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT

if TYPE_CHECKING:
    from slimformer.runtime.onnx import Array

ARTIFACTS = ROOT / "tests" / "artifacts"

YAML = b"task: sst2\nmax-length: 8\nlr: 1e-3\nbest: false\ndata: &d [a, {b: 1}]\nout: *d\nseed: 0x1f\n"
CSV = b'text,label\r\n"a ""b"",\nc",yes\nd,no\n'
TSV = b'text\tlabel\nan "odd\tyes\n\na film\tno\n'
JSONL = b'{"text": "a", "label": "yes", "more": [1, null, {"x": 1e5}]}\n\n{"text": "\\u00e9", "label": 2}\n'
JSON = b'[{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]'
CONLL = b"-DOCSTART- O\n\na B-X\nfilm I-X\n\nplot O\n"
CONLLU = b"# text\n" + b"\t".join(b"1 a a DET DT _ 2 det _ _".split()) + b"\n\n"
TEXT = "\ufeffone line\r\n\r\nanother é line\n".encode()
SQUAD = json.dumps(
    {
        "data": [
            {
                "title": "t",
                "paragraphs": [
                    {
                        "context": "a film",
                        "qas": [
                            {"id": "1", "question": "what", "answers": [{"text": "film", "answer_start": 2}]},
                            {"id": "2", "question": "who", "answers": [], "is_impossible": True},
                        ],
                    }
                ],
            }
        ]
    }
).encode()
ONNX_RECORD = json.dumps(
    {
        "format": 1,
        "architecture": "BertForSequenceClassification",
        "kind": "classification",
        "labels": ["no", "yes"],
        "columns": ["text"],
        "max_length": 64,
        "numbers": "float",
        "parameters": 100,
        "sentence": {"pooling": ["mean"], "prompts": {"query": "q: "}, "default_prompt": "query"},
        "task": {"name": "sst2", "kind": "classification", "settings": {"max_length": 64}},
        "settings": {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 32},
    }
)
IDX = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 4) + bytes(24)


def parquet() -> bytes:
    """Two rows."""
    import pyarrow as arrow
    import pyarrow.parquet as files

    stream = io.BytesIO()
    files.write_table(arrow.table({"text": ["a", "b"], "label": ["yes", None]}), stream, compression="NONE")
    return stream.getvalue()


def picture(kind: str) -> bytes:
    """A few pixels."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (200, 30, 10)).save(stream, kind)
    return stream.getvalue()


def pictures() -> bytes:
    """A zip file of them."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("train/cat/1.png", picture("png"))
    return stream.getvalue()


def packed(content: bytes) -> bytes:
    """The same in gzip."""
    return gzip.compress(content, mtime=0)


def rotary() -> tuple[dict[str, Any], dict[str, Array]]:
    """Config and tensors of a classifier that tells positions by turning; written down, since torch takes long."""
    import numpy as np

    hidden, ffn, words, labels = 8, 6, 12, 3
    kinds = ["full_attention", "sliding_attention"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.tok_embeddings.weight": (words, hidden),
        "model.embeddings.norm.weight": (hidden,),
        "model.layers.1.attn_norm.weight": (hidden,),
        "model.final_norm.weight": (hidden,),
        "head.dense.weight": (hidden, hidden),
        "head.norm.weight": (hidden,),
        "classifier.weight": (labels, hidden),
        "classifier.bias": (labels,),
    }
    for block in range(len(kinds)):
        shapes |= {
            f"model.layers.{block}.attn.Wqkv.weight": (3 * hidden, hidden),
            f"model.layers.{block}.attn.Wo.weight": (hidden, hidden),
            f"model.layers.{block}.mlp_norm.weight": (hidden,),
            f"model.layers.{block}.mlp.Wi.weight": (2 * ffn, hidden),
            f"model.layers.{block}.mlp.Wo.weight": (hidden, ffn),
        }
    config = {
        "model_type": "modernbert",
        "architectures": ["ModernBertForSequenceClassification"],
        **{"vocab_size": words, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": len(kinds)},
        **{"num_attention_heads": 2, "max_position_embeddings": 16, "local_attention": 4, "norm_eps": 1e-5},
        **{"hidden_activation": "gelu", "classifier_activation": "gelu", "classifier_pooling": "mean"},
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in kinds},
    }
    numbers = np.random.default_rng(0)
    return config, {name: numbers.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
