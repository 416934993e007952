"""Speculative decoding on one cache: tokens per second, acceptance, what a token costs, and that nothing changes.

A smaller size of an elastic decoder drafts and the largest verifies. Compared with plain decoding, with a cache for
each of the two sizes, and with Transformers' assisted generation by the extracted small size. The costs of single
forwards are measured too, and what they would lead to at the acceptance seen. Neurons are ordered by activation and
nothing is trained, unless an artifact of `slimformer elastic` is named; more training means more acceptance.
"""

from __future__ import annotations

import copy
import logging
import statistics
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.utils import logging as reports

from harness import in_turn, keep, kept, options
from harness.costs import LENGTH, break_even, calls_of, predicted_by_calls
from harness.decoders import MODELS, disagreement, greedy, open_elastic, prompts, texts
from slimformer.sizes import Draft, Elastic, extract, frequent_tokens, make_plain
from slimformer.sizes.decoding.forward import ShortHead
from slimformer.views import snapshot

if TYPE_CHECKING:
    import argparse


def write(model: Any, tokenizer: Any, count: int, tokens: int, batch: int, draft: Draft | None) -> tuple[Any, Any]:
    """New tokens of every prompt, [count, tokens], and the sums of what drafting did."""
    rows, sums = [], {"drafted": 0, "accepted": 0}
    for inputs in prompts(tokenizer, count, batch):
        output = model.generate(**inputs, **greedy(tokenizer, tokens), draft=draft, return_dict_in_generate=True)
        rows.append(output.sequences[:, inputs["input_ids"].shape[1] :])
        sums = {name: value + getattr(output.statistics, name, 0) for name, value in sums.items()} if draft else sums
    return torch.cat(rows), sums


def agreement(model: Any, tokenizer: Any, expected: Any, batch: int, draft: Draft) -> dict[str, Any]:
    """Whether a run with a draft writes what XL writes: rows that differ where its two best logits do, and ties."""
    count, tokens = expected.shape
    written, sums = write(model, tokenizer, count, tokens, batch, draft)
    return {
        "prompts": count,
        "tokens": tokens,
        "batch": batch,
        "draft": f"{draft.size}, {draft.length} tokens",
        "acceptance": round(sums["accepted"] / sums["drafted"], 3),
        **disagreement(model, prompts(tokenizer, count, 1), expected, written),
    }


def forwards(model: Any, shortlist: list[int], length: int, rounds: int) -> dict[str, float]:
    """Milliseconds of one forward after `length` tokens: a token at each size, a short head, and verifying several."""
    elastic = Elastic.of(model)
    tokens = torch.arange(5, 5 + length)[None]
    cache, head = DynamicCache(config=model.config), ShortHead(model, shortlist)
    sized = {}
    for size in elastic.names:
        with elastic.at(size):
            sized[size] = snapshot(model)
    with torch.no_grad():
        model(tokens, past_key_values=cache, logits_to_keep=1)

    def run(size: str, count: int) -> None:
        with torch.no_grad():
            sized[size](tokens[:, :count], past_key_values=cache)
        cache.crop(-count)

    def short() -> None:
        with torch.no_grad():
            head(sized["S"].base_model(tokens[:, :1], past_key_values=cache).last_hidden_state[:, -1])
        cache.crop(-1)

    runs: dict[str, Any] = {f"{size}, 1 token": lambda size=size: run(size, 1) for size in elastic.names}
    runs["S, 1 token, shortlist"] = short
    runs |= {f"XL, {count} tokens": lambda count=count: run("XL", count) for count in (2, 3, 5, 9)}
    return {name: round(seconds * 1e3, 2) for name, seconds in in_turn(runs, rounds).items()}


@torch.no_grad()
def apart(model: Any, inputs: Any, tokens: int, size: str, length: int) -> int:
    """The same greedy decoding of one row with a cache for each of the two sizes; returns verifications."""
    elastic, text, calls = Elastic.of(model), inputs["input_ids"], 0
    end = text.shape[1] + tokens
    small, large = DynamicCache(config=model.config), DynamicCache(config=model.config)
    while text.shape[1] < end:
        count, draft = min(length, end - text.shape[1] - 1), text
        with elastic.at(size):
            for _ in range(count):
                unread = draft[:, small.get_seq_length() :]
                logits = model(unread, past_key_values=small, logits_to_keep=1).logits
                draft = torch.cat([draft, logits[:, -1:].argmax(-1)], dim=1)
        unread = draft[:, large.get_seq_length() :]
        best = model(unread, past_key_values=large, logits_to_keep=count + 1).logits.argmax(-1)
        calls += 1
        agrees = (draft[:, text.shape[1] :] == best[:, :count]).long().cumprod(1).sum()
        text = torch.cat([text, best[:, : int(agrees) + 1]], dim=1)
        for cache in (small, large):
            cache.crop(-max(0, cache.get_seq_length() - (text.shape[1] - 1)))
    return calls


def speeds(model: Any, tokenizer: Any, shortlist: list[int], count: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of each way to write the same, one prompt at a time, and the acceptance of drafts."""
    batches = prompts(tokenizer, count, 1)
    plain, small = make_plain(copy.deepcopy(model)), extract(model, "S")
    small.generation_config.num_assistant_tokens = LENGTH
    small.generation_config.num_assistant_tokens_schedule = "constant"
    drafts = {
        f"draft S, {LENGTH} tokens": Draft("S", length=LENGTH),
        f"draft S, {LENGTH} tokens, shortlist": Draft("S", length=LENGTH, shortlist=shortlist),
        "draft S, length chosen": Draft("S"),
        "draft S, length chosen, shortlist": Draft("S", shortlist=shortlist),
        f"draft L, {LENGTH} tokens": Draft("L", length=LENGTH),
        "draft L, length chosen": Draft("L"),
    }
    seen: dict[str, Any] = {}

    def write_all(name: str, writer: Any, **more: Any) -> None:
        outputs = [writer.generate(**inputs, **greedy(tokenizer, tokens), **more) for inputs in batches]
        if "draft" in more:
            seen[name] = [output.statistics for output in outputs]

    runs: dict[str, Any] = {
        "XL, plain model": lambda: write_all("", plain),
        "XL, elastic model": lambda: write_all("", model),
        f"separate caches, draft S, {LENGTH} tokens": lambda: [
            apart(model, inputs, tokens, "S", LENGTH) for inputs in batches
        ],
        f"Transformers, extracted S, {LENGTH} tokens": lambda: write_all("", plain, assistant_model=small),
    }
    for name, draft in drafts.items():
        runs[name] = lambda name=name, draft=draft: write_all(name, model, draft=draft, return_dict_in_generate=True)
    seconds = in_turn(runs, rounds, warm_up=0)
    calls = {name: calls_of(each) for name, each in seen.items()}
    return {
        "prompts": count,
        "tokens": tokens,
        "tokens_per_second": {name: round(count * tokens / value, 2) for name, value in seconds.items()},
        "over_plain": {name: round(seconds["XL, plain model"] / value, 3) for name, value in seconds.items()},
        "acceptance": {
            name: round(statistics.fmean(each.acceptance for each in runs), 3) for name, runs in seen.items()
        },
        "tokens_per_verification": {
            name: round(each["generated"] / each["verify_calls"], 3) for name, each in calls.items()
        },
        "calls": calls,
    }


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What is asked about one model; None where it is not at hand."""
    opened = open_elastic(name)
    if opened is None:
        print(f"{name} is not at hand")
        return None
    model, tokenizer = opened
    result = {} if arguments.rounds == 0 else timings(model, tokenizer, arguments)
    if arguments.agreement:
        expected, _ = write(model, tokenizer, arguments.agreement, 100, 8, None)
        draft = Draft("L", length=3)
        result["agreement"] = [agreement(model, tokenizer, expected, batch, draft) for batch in (1, 4)]
    return result


def forward_of(way: str) -> str:
    """Which forward a way to draft costs for each token: of its size, with the head that it has."""
    size = way.removeprefix("draft ").partition(",")[0]
    return f"{size}, 1 token" + (", shortlist" if way.endswith("shortlist") else "")


def timings(model: Any, tokenizer: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Costs of single forwards, speeds of whole texts, and what the former say of the latter."""
    tiny = arguments.tiny
    shortlist = frequent_tokens(tokenizer(texts()[500:])["input_ids"], 4096)
    costs = forwards(model, shortlist, 16 if tiny else 64, 1 if tiny else 9)
    amount = (1, 6, 1) if tiny else (arguments.prompts, arguments.tokens, arguments.rounds)
    speed = speeds(model, tokenizer, shortlist, *amount)
    model_of_cost = {
        way: {
            "predicted": predicted_by_calls(costs, calls, forward_of(way)),
            "measured": speed["over_plain"][way],
            "pays_from_acceptance": break_even(costs, forward_of(way), LENGTH) if "chosen" not in way else None,
        }
        for way, calls in speed["calls"].items()
    }
    return {"forward_ms": costs, "shortlist": len(shortlist), **speed, "cost_model": model_of_cost}


def main() -> None:
    """Measure on real decoders."""
    reports.disable_progress_bar()
    reports.set_verbosity(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=[*MODELS], help="names above, or elastic artifacts")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="0: no timings; those that are kept stay")
    parser.add_argument(
        "--agreement", type=int, default=0, metavar="PROMPTS", help="compare 100 tokens of so many, too"
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    names = ["stories15M"] if arguments.tiny else arguments.models
    result: dict[str, Any] = {} if arguments.tiny else kept("speculative")
    for name in names:
        measured = measure(name, arguments)
        if measured is not None:
            result[Path(name).name] = {**result.get(Path(name).name, {}), **measured}
    keep("speculative", arguments, result)


if __name__ == "__main__":
    main()
