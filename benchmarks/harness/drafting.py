"""Speculative decoding on the native engine beside plain decoding there and in torch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harness import in_turn
from harness.costs import LENGTH, break_even, calls_of, predicted_by_calls
from harness.decoders import TYPES, in_floats, open_elastic, prompts, texts, tiny
from harness.turns import PAUSE, ratio, timed_apart
from slimformer.sizes import Draft, Elastic, copy_largest, frequent_tokens, make_elastic

if TYPE_CHECKING:
    from slimformer.runtime.decoder import NativeDecoder

#: Tokens of the shortlist.
SHORTLIST = 4096
#: Single forwards are timed so many times as often as whole texts.
OFTEN = 4


def elastic(name: str, tiny_model: bool, count: int, seed: int) -> tuple[Any, list[list[int]], list[int]] | None:
    """An elastic decoder, beginnings of texts, and the tokens that stand most often in others."""
    if tiny_model:
        model = tiny()[0].eval()
        make_elastic(model)
        draw = np.random.default_rng(seed)
        return model, [draw.integers(3, 99, 5).tolist() for _ in range(count)], list(range(50))
    opened = open_elastic(name)
    if opened is None:
        return None
    model, tokenizer = opened
    beginnings = [each["input_ids"][0].tolist() for each in prompts(tokenizer, count, 1)]
    return model, beginnings, frequent_tokens(tokenizer(texts()[500:])["input_ids"], SHORTLIST)


def forwards(
    decoder: NativeDecoder, ids: list[int], draft: str, shortlist: list[int], rounds: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Milliseconds of one forward on the engine: a token at either size, with a short head, and verifying several.

    And how many times a token the verification of several is.
    """
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
    seconds = timed_apart({"": runs}, OFTEN * rounds, 0)[""]
    medians = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
    return medians, ratio(seconds[f"XL, {LENGTH + 1} tokens"], seconds["XL, 1 token"])


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
    costs, fives, ways, done = {}, {}, {}, {}
    for name, dtype in TYPES.items():
        decoder = in_floats(plain, dtype, threads, sizes)
        costs[name], fives[name] = forwards(decoder, prompts[0], draft, shortlist, rounds)
        runs[f"engine {name}"] = lambda decoder=decoder: write_engine(decoder, prompts, new, None)
        expected = [each.tokens for each in write_engine(decoder, prompts, new, None)]
        for way, (forward, asked) in drafts_for(draft, shortlist, costs[name]).items():
            written = write_engine(decoder, prompts, new, asked)
            if [each.tokens for each in written] != expected:
                raise SystemExit(f"{name}, {way}: another text than without a draft")
            key = f"engine {name}, {way}"
            ways[key] = name, forward, asked
            done[key] = calls_of([each.statistics for each in written])
            runs[key] = lambda decoder=decoder, asked=asked: write_engine(decoder, prompts, new, asked)
    seconds = in_turn(runs, rounds, pause=PAUSE)
    return {
        "prompts": len(prompts),
        "tokens": new,
        "shortlist": len(shortlist),
        "forward_ms": costs,
        "five_over_one": fives,
        "tokens_per_second": {name: len(prompts) * new / each for name, each in seconds.items()},
        "drafts": {
            key: compared(costs[name], forward, asked, done[key], seconds[f"engine {name}"] / seconds[key])
            for key, (name, forward, asked) in ways.items()
        },
    }


def compared(
    costs: dict[str, float], forward: str, asked: Draft, calls: dict[str, int], measured: float
) -> dict[str, Any]:
    """Acceptance, and speed over plain decoding on the engine: by the costs of forwards, and as measured."""
    said = {
        "acceptance": calls["accepted"] / max(1, calls["drafted"]),
        "tokens_per_verification": calls["generated"] / calls["verify_calls"],
        "predicted": predicted_by_calls(costs, calls, forward),
        "measured": measured,
    }
    if asked.length is not None:
        said["pays_from_acceptance"] = break_even(costs, forward, asked.length)
    return said
