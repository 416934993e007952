"""Drafts on the engine: the tokens are those of the verifying size alone, to the last one."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from scipy.stats import chisquare

from slimformer.errors import ConfigError, SizeError
from slimformer.runtime.building import ModelParts
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.decoding.choosing import Chooser, Sampling
from slimformer.runtime.native import is_built
from slimformer.sizes import Draft, frequent_tokens, importance, make_elastic, make_plain, name_sizes, reorder
from tests.runtime.decoding.elastic import elastic_folder
from tests.sizes.decoding.models import TIE

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

STORIES = Path(__file__).parents[4] / "shared/weights/stories15M"
DRAFTS = {
    "S": "S",
    "M": "M",
    "itself": "XL",
    "two": Draft("S", length=2),
    "many": Draft("M", length=7),
    "short": Draft("S", length=3, shortlist=range(0, 99, 3)),
    "by block": Draft("XL,S,M", length=4),
    "eager": Draft("M", cost=0.01, verification=0.1, longest=5),
}
#: A true distribution fails this once in ten thousand seeds; a wrong one fails by hundreds of orders of magnitude.
LEVEL = 1e-4


def prompts(lengths=(9, 1, 33, 16, 17, 2), seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 99, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    kinds = {"floats": {}, "halves": {"family": "qwen3", "dtype": torch.bfloat16}, "ternary": {"numbers": {}}}
    return {name: NativeDecoder(elastic_folder(folder / name, **kind), threads=1) for name, kind in kinds.items()}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("kind", ["floats", "halves", "ternary"])
def test_tokens_are_those_without_a_draft(decoders, kind, draft):
    decoder, asked = decoders[kind], DRAFTS[draft]
    expected = decoder.generate(prompts(), 24)
    written = decoder.write(prompts(), 24, draft=asked)
    assert written.tokens == expected
    assert [decoder.generate([ids], 24, draft=asked)[0] for ids in prompts()] == expected
    statistics = written.statistics
    assert statistics.generated == sum(map(len, expected))
    assert statistics.drafted > 0
    assert statistics.verify_calls <= 24
    assert statistics.cache_bytes > 0
    if draft == "itself":
        assert statistics.acceptance == 1
        assert statistics.verify_calls < 12
    if draft == "many":
        assert 0 < statistics.acceptance < 1


def test_a_size_is_verified_as_the_largest_is(decoders):
    decoder = decoders["floats"]
    expected = decoder.generate(prompts(), 20, size="M")
    assert decoder.generate(prompts(), 20, size="M", draft=Draft("S", length=4)) == expected
    assert decoder.generate(prompts(), 20, size="S") != expected != decoder.generate(prompts(), 20)


@pytest.mark.parametrize("draft", ["two", "many", "itself", "eager"])
def test_texts_end_where_they_end_without_a_draft(decoders, draft):
    decoder, asked = decoders["floats"], DRAFTS[draft]
    free = decoder.generate(prompts(), 24)
    stop = {free[0][5], free[3][2], free[2][17]}
    assert decoder.generate(prompts(), 24, stop, draft=asked) == decoder.generate(prompts(), 24, stop)
    for count in (1, 2, 3, 9):
        assert decoder.generate(prompts(), count, draft=asked) == [tokens[:count] for tokens in free]
    # What the model takes ends within a draft.
    full = prompts((64, 63, 60, 3))
    assert decoder.generate(full, 24, draft=asked) == decoder.generate(full, 24)
    assert [len(tokens) for tokens in decoder.generate(full, 24, draft=asked)] == [1, 2, 5, 24]


def test_verified_tokens_have_the_bits_of_single_ones(decoders):
    """What makes the above more than likely: rows of one forward are those of one forward each."""
    for decoder in decoders.values():
        ids, together, alone = prompts((40,))[0], decoder.cache(), decoder.cache()
        rows = decoder.run([ids], [together], all_logits=True)
        single = np.concatenate([decoder.run([[token]], [alone]) for token in ids])
        assert np.array_equal(rows.view(np.int32), single.view(np.int32))
        for count in range(2, 9):  # drafted and verified again, on what a smaller size has left
            for token in ids[:count]:
                decoder.run([[token]], [together], size="S")
            together.crop(len(ids))
            verified = decoder.run([ids[:count]], [together], all_logits=True)
            apart = np.concatenate([decoder.run([[token]], [alone]) for token in ids[:count]])
            assert np.array_equal(verified.view(np.int32), apart.view(np.int32))
            together.crop(len(ids))
            alone.crop(len(ids))


def test_drawn_tokens_are_the_same_alone_and_beside_others(decoders):
    decoder = decoders["floats"]
    for sampling in (Sampling(seed=3, temperature=1.5), Sampling(top_k=None, top_p=0.9)):
        for draft in ("S", Draft("M", length=3, shortlist=range(60))):
            alone = [decoder.generate([ids], 12, sampling=sampling, draft=draft)[0] for ids in prompts()]
            assert decoder.generate(prompts(), 12, sampling=sampling, draft=draft) == alone
    assert decoder.write(prompts(), 12, sampling=Sampling(), draft=Draft("XL", length=3)).statistics.acceptance == 1


@pytest.mark.slow
def test_texts_that_are_drawn_with_a_draft_are_distributed_as_those_without():
    """All continuations of three tokens of a vocabulary of four, by the rule of the chain."""
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=16)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
            weight.add_(0.3 * torch.randn_like(weight))
    config = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    decoder = NativeDecoder(ModelParts("tiny", config, tensors), threads=1, sizes=name_sizes((0.5, 1)))
    prompt, count, tokens, temperature = [1, 2, 0], 4_000, 3, 0.9
    texts = list(itertools.product(range(4), repeat=tokens))
    logits = decoder.run([[*prompt, *text] for text in texts], [decoder.cache() for _ in texts], all_logits=True)
    logits = logits.reshape(len(texts), -1, 4)[:, len(prompt) - 1 : -1].astype(np.float64) / temperature
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.array(
        [np.prod([p[t] for p, t in zip(row, text, strict=True)]) for row, text in zip(shares, texts, strict=True)]
    )
    accepted = []
    for draft in (Draft("S", length=2), Draft("S", length=1, shortlist=[0, 3])):
        observed = np.zeros(len(texts))
        kept = tried = 0
        for seed in range(count):
            sampling = Sampling(temperature, top_k=None, seed=seed)
            written = decoder.write([prompt], tokens, sampling=sampling, draft=draft)
            observed[texts.index(tuple(written.tokens[0]))] += 1
            kept, tried = kept + written.statistics.accepted, tried + written.statistics.drafted
        accepted.append(kept / tried)
        rare = expected * count < 5
        merged = [np.append(each[~rare], each[rare].sum()) for each in (observed, expected * count)]
        assert chisquare(merged[0], merged[1] * count / merged[1].sum()).pvalue > LEVEL
    assert all(0.1 < share < 0.95 for share in accepted)  # else nothing was tried


def test_what_follows_a_rejected_token_is_drawn_from_the_rest():
    """One step by hand: p and q are as far apart as can be, and where they agree all stays."""
    logits = np.log(np.array([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]], np.float32))
    q = np.array([1.0, 0.0, 0.0])
    counts = np.zeros((2, 3))
    for seed in range(3_000):
        accepted, token = Chooser(Sampling(top_k=None, seed=seed)).verify([0], [q], logits)
        counts[accepted, token] += 1
    assert counts[0, 0] == 0  # p has no more of what was proposed than q
    expected = np.array([0, 0.25, 0.25, 1 / 6, 1 / 6, 1 / 6]) * counts.sum()
    assert chisquare(counts.ravel()[1:], expected[1:]).pvalue > LEVEL
    same = Chooser(Sampling(top_k=None, seed=1))
    assert same.verify([2], [np.array([0.5, 0.25, 0.25])], logits)[0] == 1


def test_threads_that_ask_at_once_get_the_answers_they_get_alone(decoders):
    decoder = decoders["ternary"]
    asked = [(ids, draft) for ids in prompts() for draft in (None, "S", DRAFTS["short"], Draft("M", shortlist=[5]))]
    alone = [decoder.generate([ids], 10, draft=draft) for ids, draft in asked]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda each: decoder.generate([each[0]], 10, draft=each[1]), asked)) == alone


def test_drafts_that_cannot_be_are_refused(decoders, tmp_path):
    decoder = decoders["floats"]
    for draft, error, message in (
        ("XXL", SizeError, "there is no size `XXL`"),
        (Draft("S", shortlist=[5, 99]), ConfigError, "the shortlist names token 99, and the model has 99"),
        (Draft("S", shortlist=[-1]), ConfigError, "the shortlist names token -1"),
    ):
        with pytest.raises(error, match=message):
            decoder.generate([[5]], 3, draft=draft)
    folder = elastic_folder(tmp_path / "plain", shares=(1.0,))
    (folder / "sizes.json").unlink()
    with pytest.raises(SizeError, match="has one size only"):
        NativeDecoder(folder).generate([[5]], 3, draft="S")


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the weights of stories15M are not beside the checkout")
def test_real_weights_write_what_they_write_without_a_draft(tmp_path):
    model = hf.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(STORIES, pad_token="<unk>")
    texts = ["Once upon a time", "Lily and Ben", "The dog was sad because", "One day, a big bear", "Mom said"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    reorder(model, importance(model, [tokenizer(texts, return_tensors="pt", padding=True)]))
    make_elastic(model)
    settings = {"max_new_tokens": 48, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    drafted = model.generate(torch.tensor(ids[:1]), **settings, draft=Draft("L", length=4))
    statistics = model.generate(
        torch.tensor(ids[:1]), **settings, draft=Draft("L", length=4), return_dict_in_generate=True
    ).statistics
    plain = make_plain(model)
    plain.save_pretrained(tmp_path)
    decoder = NativeDecoder(tmp_path, threads=1, sizes=name_sizes())
    expected = decoder.generate(ids, 48)
    assert expected[0] == drafted[0, len(ids[0]) :].tolist()
    frequent = frequent_tokens([*ids, *expected], 64)
    for draft in ("S", Draft("L", length=4), Draft("M", length=3, shortlist=frequent), Draft("L", length=8)):
        assert decoder.generate(ids, 48, draft=draft) == expected
    # The same tokens are drafted and accepted as in torch, but for ties.
    here = decoder.write(ids[:1], 48, draft=Draft("L", length=4)).statistics
    assert here.acceptance == pytest.approx(statistics.acceptance, abs=100 * TIE)
    assert here.verify_calls == statistics.verify_calls
