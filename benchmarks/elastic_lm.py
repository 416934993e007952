"""One elastic decoder from scratch against separate ones: MatFormer's comparison (arXiv 2310.07707) on film reviews.

A decoder of 8 blocks of 256 (9.4 million weights) with a vocabulary of 4,096 of its own reads IMDB's reviews in blocks
of 128 tokens. The paper's budget: each of four separate models, as wide as S, M, L and XL, sees X tokens, and each run
that trains all sizes at once sees 4X: sampled (MatFormer), joint (as DynaBERT: four batches an update) and per block
(as Once-for-All). The learning rate of each of these seven is the best on dev after a quarter of its steps: of three,
or of more where the largest was the best. Then, all on text that no run has seen: loss of each size; Mix'n'Match
between the sizes in four orders; evolutionary search with a predictor fitted to 1,000 pairs of allocation and loss;
agreement with the largest size.

By default X is half a million tokens with one seed, about 5 hours of one core. `--full` takes X of 2 million, three
seeds, and narrower shapes to fit a scaling law on. All of it is small pieces of work: results are kept after each, a
run that is killed goes on from its last checkpoint in `--work`, and what is there is not done again. All that needs one
model is done as soon as it is trained; where `--work` was lost, a model that is needed again is trained again.
"""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harness import trained_in, training_options
from harness.language import BATCH, cut_blocks, losses
from harness.nested import SIZES, TOGETHER, VARIANTS, summary
from harness.pieces import Pieces, add_piece_options
from slimformer import elastic, load
from slimformer.artifact.provenance import fingerprint
from slimformer.methods.elastic.analysis import consistency
from slimformer.sizes import ORDERS, Allocation, Budget, Costs, Elastic, Predictor, Scored, evolve, name_sizes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

NAME = "elastic_lm"
ROWS = ("elastic", "separate", "others", "nas")
#: Learning rates tried, and those tried after them while the largest is the best.
RATES, HIGHER_RATES = (4e-4, 1e-3, 2.5e-3), (5e-3, 1e-2)
#: Allocations in a piece of work, tokens they are measured on, and pieces.
PAIRS, PAIR_TOKENS, PAIR_PIECES = 25, 20_480, 40
TEST_TOKENS, MIX_TOKENS, CONSISTENCY_TOKENS = 102_400, 61_440, 20_480
DEV_REVIEWS, TEST_REVIEWS = 75, 400
#: Parts of test whose mean losses are kept.
PARTS = 25


@dataclass(frozen=True)
class Plan:
    """The size of everything.

    Args:
        hidden: Width of the decoder; its FFN has four times as many neurons.
        layers: Its blocks.
        steps: Optimizer steps of a separate model, which make X tokens.
        seed: Seed of weights, order of the data and sizes drawn.
        tiny: Whether to show only that it runs.
    """

    hidden: int = 256
    layers: int = 8
    steps: int = 1024
    seed: int = 0
    tiny: bool = False
    batch: int = 4
    length: int = 128
    vocabulary: int = 4096

    @property
    def tokens(self) -> int:
        """X."""
        return self.steps * self.batch * self.length

    @property
    def name(self) -> str:
        """What tells its pieces from those of others."""
        return f"{self.hidden}x{self.layers}, {self.tokens} tokens, seed {self.seed}"

    def cut(self, count: int) -> int:
        """A number of tokens, or next to none."""
        return 8 * self.length if self.tiny else count


def settings(plan: Plan, variant: str, rate: float, short: bool) -> dict[str, Any]:
    """The settings of `slimformer.elastic` for a run; a separate model is one with a single size."""
    steps = max(1, plan.steps // 4) if short else plan.steps
    ffn = 4 * plan.hidden
    how: dict[str, Any] = {"max_steps": 4 * steps, "batch_size": plan.batch, "ffn": ffn}
    if variant in TOGETHER:
        how["training"] = TOGETHER[variant]
        if variant == "joint":  # four batches an update
            how.update(max_steps=steps, batch_size=4 * plan.batch)
    else:
        how.update(sizes="1", max_steps=steps, ffn=round(ffn * SIZES[variant.split()[-1]]))
    return {
        **how,
        "layers": plan.layers,
        "hidden": plan.hidden,
        "heads": plan.hidden // 32,
        "vocabulary": plan.vocabulary,
        "lr": rate,
        "schedule": "cosine",
        "beta2": 0.95,
        "weight_decay": 0.1,
        "seed": plan.seed,
        "best": False,
    }


def write_texts(data: Path, work: Path, tiny: bool) -> Path:
    """Reviews as train, dev and test, the same ones every time."""
    folder = work / "texts"
    with (data / "imdb" / "imdb_12k.csv").open(encoding="utf-8", newline="") as file:
        reviews = [row["text"].replace("<br />", "\n") for row in csv.DictReader(file)]
    random.Random(0).shuffle(reviews)
    reviews = reviews[:200] if tiny else reviews
    dev, test = (5, 5) if tiny else (DEV_REVIEWS, TEST_REVIEWS)
    splits = {"dev": reviews[:dev], "test": reviews[dev : dev + test], "train": reviews[dev + test :]}
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in splits.items():
        stage = folder / f"{split}.jsonl.part"
        stage.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        stage.replace(folder / f"{split}.jsonl")
    decoder = {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 512}
    (work / "decoder.json").write_text(json.dumps(decoder))
    return folder


class Table:
    """All that is done for one plan.

    Args:
        plan: How large everything is.
        pieces: Where results are kept.
        work: Folder for models and texts.
    """

    def __init__(self, plan: Plan, pieces: Pieces, work: Path) -> None:
        self.plan, self.pieces, self.work = plan, pieces, work
        self.texts = work / "texts"
        self.sizes = name_sizes(list(SIZES.values()))

    def do(
        self,
        name: str,
        work: Callable[[], dict[str, Any]],
        still: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """One piece of this plan."""
        return self.pieces.do(f"{self.plan.name}: {name}", work, still)

    def of_models(
        self,
        name: str,
        variants: Iterable[str],
        work: Callable[[], dict[str, Any]],
        still: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """A piece that needs trained models, done again where another learning rate has become the best for one."""
        rates = {variant: self.best_rate(variant) for variant in variants}
        return self.do(name, lambda: {"rates": rates, **work()}, lambda kept: kept["rates"] == rates and still(kept))

    def train(self, variant: str, rate: float, short: bool) -> dict[str, Any]:
        """One run, on from where it was killed; loss on dev by size."""
        result = elastic(
            scratch=str(self.work / "decoder.json"),
            task="language-modelling",
            data=str(self.texts),
            max_length=self.plan.length,
            out=str(self.folder(variant, rate, short)),
            threads=self.pieces.arguments.threads,
            bf16=self.pieces.arguments.bf16,
            save_every=128,
            log_every=64,
            quiet=True,
            resume=True,
            **settings(self.plan, variant, rate, short),
        )
        names = ["XL"] if variant not in TOGETHER else list(SIZES)
        dev = {size: round(math.log(result.metrics[f"perplexity@{size}"]), 4) for size in names}
        return {"trained in": trained_in(self.pieces.arguments), "dev": dev}

    def folder(self, variant: str, rate: float, short: bool = False) -> Path:
        """Where a model is kept."""
        ending = " short" if short else ""
        return self.work / f"{self.plan.name} {variant} {rate:g}{ending}".replace(", ", "-").replace(" ", "-")

    def best_rate(self, variant: str) -> float:
        """The best learning rate on dev, by the mean over sizes."""
        rates = RATES[:1] if self.plan.tiny else RATES
        best = self.best_of(variant, rates)
        for higher in () if self.plan.tiny else HIGHER_RATES:
            if best == rates[-1]:
                rates = (*rates, higher)
                best = self.best_of(variant, rates)
        return best

    def best_of(self, variant: str, rates: tuple[float, ...]) -> float:
        """The best of some learning rates."""
        scores = {}
        for rate in rates:
            tried = self.do(f"{variant} at {rate:g}", lambda rate=rate: self.train(variant, rate, short=True))
            shutil.rmtree(self.folder(variant, rate, short=True), ignore_errors=True)
            scores[rate] = float(np.mean(list(tried["dev"].values())))
        return min(scores, key=scores.__getitem__)

    @cached_property
    def tokenizer(self) -> Any:
        """The one that all models have, since all are trained on the same texts."""
        trained = next(self.work.glob("*/slimformer.json"), None)
        if trained is None:  # where only results are left
            self.model("elastic")
        return load(trained.parent if trained else self.kept("elastic")).processor

    @cached_property
    def blocks(self) -> dict[str, Tensor]:
        """Blocks of tokens of the splits that are not trained on."""
        tokenizer = self.tokenizer
        cut = {}
        for split, tokens in {"dev": PAIR_TOKENS, "test": TEST_TOKENS}.items():
            lines = (self.texts / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
            texts = [json.loads(line)["text"] for line in lines]
            cut[split] = cut_blocks(texts, tokenizer, self.plan.length, self.plan.cut(tokens))
        return cut

    def model(self, variant: str) -> Any:
        """A trained model with its sizes; trained again where only its results are left."""
        folder = self.kept(variant)
        if not (folder / "slimformer.json").exists():
            self.train(variant, self.best_rate(variant), short=False)
        return load(folder).model.eval()

    def kept(self, variant: str) -> Path:
        """The folder of a model that was trained to its end, or will be."""
        return self.folder(variant, self.best_rate(variant))

    def test_loss(self, variant: str) -> dict[str, Any]:
        """Loss on test: the mean, and the means of `PARTS` parts, by which two models are compared pair by pair."""
        model = self.model(variant)
        nested, by_size = Elastic.of(model), {}
        for size in nested.names:
            with nested.at(size):
                by_size[variant.split()[-1] if variant not in TOGETHER else size] = losses(model, self.blocks["test"])
        return {
            "loss": {size: round(float(each.mean()), 4) for size, each in by_size.items()},
            "parts": {
                size: [round(float(part.mean()), 4) for part in np.array_split(each, min(PARTS, len(each)))]
                for size, each in by_size.items()
            },
        }

    def allocation_losses(self, variant: str, allocations: list[Allocation], blocks: Tensor) -> dict[str, float]:
        """Loss of each allocation of a model."""
        model = self.model(variant)
        nested, measured = Elastic.of(model), {}
        for allocation in allocations:
            with nested.at(allocation):
                measured[str(allocation)] = round(float(losses(model, blocks).mean()), 5)
        return measured

    def mixed(self, order: str) -> list[Allocation]:
        """Mix'n'Match in an order: of two neighbouring sizes, the larger one in a quarter, half, … of the blocks."""
        ranked, step = ORDERS[order](self.plan.layers), max(1, self.plan.layers // 4)
        mixtures = []
        for small, large in pairwise(self.sizes):
            for count in range(step, self.plan.layers, step):
                larger = set(ranked[:count])
                mixtures.append(Allocation(tuple(large if i in larger else small for i in range(self.plan.layers))))
        return [*mixtures, *(Allocation((size,) * self.plan.layers) for size in self.sizes)]

    def drawn(self) -> Iterator[list[Allocation]]:
        """Allocations drawn at random, none of them twice, in pieces."""
        draw = random.Random(f"{self.plan.seed} pairs")
        seen: dict[str, Allocation] = {}
        count, pieces = (5, 2) if self.plan.tiny else (PAIRS, PAIR_PIECES)
        while len(seen) < count * pieces:
            allocation = Allocation(tuple(draw.choices(self.sizes, k=self.plan.layers)))
            seen.setdefault(str(allocation), allocation)
        ordered = list(seen.values())
        for number in range(pieces):
            yield ordered[number * count : (number + 1) * count]

    def agreement(self, kind: str) -> dict[str, Any]:
        """Consistency of the smaller sizes with the largest, of one elastic model or of separate ones."""
        blocks = self.blocks["test"][: max(1, self.plan.cut(CONSISTENCY_TOKENS) // self.plan.length)]
        batches = [{"input_ids": batch} for batch in blocks.split(BATCH)]
        names, new = list(SIZES)[:-1], self.plan.length // 4
        if kind == "elastic":
            measured = consistency(self.model("elastic"), batches, prefix=new, new_tokens=new)
        else:
            others = {size: self.model(f"separate {size}") for size in names}
            measured = consistency(self.model("separate XL"), batches, (), others, prefix=new, new_tokens=new)
        rows = {size: vars(measured.data[size]) for size in names}
        return {"size": {size: {name: round(value, 4) for name, value in row.items()} for size, row in rows.items()}}

    def search(self, pairs: dict[str, float]) -> dict[str, Any]:
        """Evolution with a predictor fitted to measured pairs, against Mix'n'Match at the costs of its mixtures."""
        model = self.model("elastic")
        nested, costs = Elastic.of(model), Costs.of(model)
        scored = [Scored(nested.allocation(name), loss) for name, loss in pairs.items()]
        predictor = Predictor.fit(nested, scored, self.plan.seed)
        mixtures = self.mixed("increasing")[: -len(self.sizes)]
        picks = [
            evolve(nested, Budget(costs, costs.total(mixture)), predictor, seed=self.plan.seed) for mixture in mixtures
        ]
        loss = self.allocation_losses("elastic", [*mixtures, *picks], self.blocks["test"][self.some])
        return {
            "pairs": len(pairs),
            "rank_correlation": round(predictor.correlation, 4),
            "squared_error": float(f"{predictor.error:.2e}"),
            "picks": {
                str(mixture): {"mixture": loss[str(mixture)], "search": loss[str(pick)], "picked": pick.by_block}
                for mixture, pick in zip(mixtures, picks, strict=True)
            },
        }

    @property
    def some(self) -> slice:
        """The blocks of test that mixtures are measured on."""
        return slice(max(1, self.plan.cut(MIX_TOKENS) // self.plan.length))

    def losses_of(self, variant: str) -> None:
        """Train a model with its best rate and measure it on test."""
        self.of_models(variant, [variant], lambda: self.train(variant, self.best_rate(variant), short=False))
        self.of_models(f"test of {variant}", [variant], lambda: self.test_loss(variant))

    def mixtures(self, variant: str, order: str) -> None:
        """Losses of mixtures of sizes."""
        self.of_models(
            f"Mix'n'Match of {variant}, {order}",
            [variant],
            lambda: {"loss": self.allocation_losses(variant, self.mixed(order), self.blocks["test"][self.some])},
        )

    def elastic(self) -> None:
        """All sizes in one run, and their mixtures."""
        self.losses_of("elastic")
        for order in ORDERS:
            self.mixtures("elastic", order)
        self.of_models("consistency of elastic", ["elastic"], lambda: self.agreement("elastic"))

    def separate(self) -> None:
        """Each size by itself."""
        for size in SIZES:
            self.losses_of(f"separate {size}")
        separate = [f"separate {size}" for size in SIZES]
        self.of_models("consistency of separate", separate, lambda: self.agreement("separate"))

    def others(self) -> None:
        """Other ways of training all sizes in one run."""
        self.losses_of("joint")
        self.losses_of("per-block")
        self.mixtures("per-block", "increasing")

    def pairs(self, number: int, allocations: list[Allocation]) -> dict[str, Any]:
        """Losses of some allocations on dev; measured again where they are those of a model that is lost."""
        return self.of_models(
            f"pairs {number}",
            ["elastic"],
            lambda: {
                "weights": self.weights,
                "loss": self.allocation_losses("elastic", allocations, self.blocks["dev"]),
            },
            lambda kept: kept["weights"] == self.weights,
        )

    @cached_property
    def weights(self) -> str:
        """What tells one training of the elastic model from another."""
        self.model("elastic")
        return fingerprint(self.kept("elastic"))[:16]

    def nas(self) -> None:
        """Pairs of allocation and loss, and a search by what they tell."""
        pairs: dict[str, float] = {}
        for number, part in enumerate(self.drawn()):
            pairs |= self.pairs(number, part)["loss"]
        self.of_models("search", ["elastic"], lambda: self.search(pairs))


def plans(arguments: argparse.Namespace) -> list[Plan]:
    """What is done, the table of the first seed first."""
    if arguments.tiny:
        return [Plan(hidden=32, layers=4, steps=2, seed=arguments.seed, tiny=True, batch=2, length=16, vocabulary=300)]
    if not arguments.full:
        return [Plan(seed=arguments.seed)]
    return [Plan(steps=4096, seed=seed) for seed in range(3)]


def shapes(arguments: argparse.Namespace) -> list[Plan]:
    """Narrower decoders for the scaling law; at the default size of X a part of `--full` too."""
    return [Plan(hidden=hidden, seed=0) for hidden in (64, 128, 192)] if arguments.full else []


def main() -> None:
    """Do whatever is not done yet."""
    parser = training_options(__doc__)
    add_piece_options(parser, NAME)
    parser.add_argument("--rows", default=",".join(ROWS), help="of these, in several processes if you like")
    parser.add_argument("--full", action="store_true", help="X of 2 million tokens, three seeds, a scaling law")
    arguments = parser.parse_args()
    if not (arguments.data / "imdb").is_dir():
        print(f"skipped: no reviews at {arguments.data / 'imdb'}; give --data")
        return
    torch.set_num_threads(arguments.threads)
    pieces = Pieces(NAME, arguments, summary)

    def everything() -> None:
        write_texts(arguments.data, arguments.work, arguments.tiny)
        for plan in plans(arguments):
            for row in arguments.rows.split(","):
                getattr(Table(plan, pieces, arguments.work), row)()
        for plan in shapes(arguments):
            for variant in VARIANTS:
                Table(plan, pieces, arguments.work).losses_of(variant)

    pieces.run(everything)


if __name__ == "__main__":
    main()
