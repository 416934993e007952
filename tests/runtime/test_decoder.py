"""Whole decoders on the native kernels against the same models in Transformers, and against integers in NumPy."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import slimformer  # noqa: F401  (teaches Transformers to read packed weights)
from slimformer.errors import ConfigError, DataError
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.decoding.architecture import DECODERS
from slimformer.runtime.decoding.choosing import Sampling
from slimformer.runtime.native import VARIABLE, is_built, kernels
from tests import zoo
from tests.runtime.decoding.integers import ExactDecoder
from tests.runtime.test_encoder import quantized, same_bits

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

STORIES = Path(__file__).parents[3] / "shared/weights/stories15M"
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 24,
}
#: Settings in which models of one family differ.
VARIANTS = {
    **{family: (family, {}) for family in DECODERS},
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "all heads alike": ("llama", {"num_key_value_heads": 4}),
    "one head of keys": ("qwen3", {"num_key_value_heads": 1}),
    "odd width": ("llama", {"head_dim": 18}),
    "llama3": ("llama", {"rope_parameters": LLAMA_3}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
}


def save(folder, variant="llama", packed=False, dtype=None):
    family, changes = VARIANTS[variant]
    config = zoo.CONFIGS[family](**changes)
    torch.manual_seed(0)
    model = zoo.enliven(hf.AutoModelForCausalLM.from_config(config)).eval()
    if packed:
        quantized(model)
    if dtype is not None:
        model.to(dtype)
    model.save_pretrained(folder)
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def prompts(lengths=(9, 1, 33, 16, 17, 2), seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 99, length).tolist() for length in lengths]


@torch.no_grad()
def in_torch(model, ids):
    return model(torch.tensor([ids])).logits[0].numpy()


def caches(decoder, count):
    return [decoder.cache() for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoders")
    save(path / "floats", "qwen3")
    save(path / "ternary", "qwen3", packed=True)
    save(path / "other", "llama")
    return path


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_engine_computes_what_transformers_computes(tmp_path, variant):
    model = save(tmp_path, variant)
    decoder = NativeDecoder(tmp_path, threads=1)
    for ids in prompts():
        expected = in_torch(model, ids)
        np.testing.assert_allclose(
            decoder.run([ids], caches(decoder, 1), all_logits=True), expected, rtol=1e-4, atol=2e-5
        )
        tokens = model.generate(
            torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert decoder.generate([ids], 20) == [tokens[0, len(ids) :].tolist()]


@pytest.mark.parametrize("family", DECODERS)
def test_ternary_weights_are_computed_as_transformers_does(tmp_path, family):
    model = save(tmp_path, family, packed=True)
    decoder, close = NativeDecoder(tmp_path), []
    for ids in prompts():
        logits = decoder.run([ids], caches(decoder, 1), all_logits=True)
        # Where torch rounds to the other of two steps, since it sums in another order, later tokens move with it.
        apart = np.abs(logits - in_torch(model, ids)).max(axis=-1)
        assert apart.max() < 0.05 * np.abs(logits).max()
        close += (apart < 1e-4).tolist()
    assert np.mean(close) > 0.5


@pytest.mark.parametrize("family", DECODERS)
def test_ternary_decoding_is_that_of_integers_in_numpy(tmp_path, family):
    save(tmp_path, family, packed=True)
    decoder, exact = NativeDecoder(tmp_path), ExactDecoder(tmp_path, DECODERS[family])
    for ids in prompts((9, 1, 17)):
        logits = exact.logits(ids)
        np.testing.assert_allclose(decoder.run([ids], caches(decoder, 1))[0], logits[-1], rtol=1e-3, atol=1e-4)
        tokens = list(ids)
        for _ in range(8):
            tokens.append(int(np.argmax(exact.logits(tokens)[-1])))
        assert decoder.generate([ids], 8) == [tokens[len(ids) :]]


def test_bfloat16_is_computed_as_the_floats_it_stands_for(tmp_path):
    model = save(tmp_path / "bfloat16", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "float32")
    halves, floats = NativeDecoder(tmp_path / "bfloat16"), NativeDecoder(tmp_path / "float32")
    logits = [each.run(prompts(), caches(each, 6), all_logits=True) for each in (halves, floats)]
    assert same_bits(*logits)


@pytest.mark.parametrize("kind", ["floats", "ternary"])
def test_batch_threads_parts_and_instruction_set_change_no_bit(folders, kind, monkeypatch):
    decoder, ids = NativeDecoder(folders / kind, threads=1), prompts()
    expected = [decoder.run([each], caches(decoder, 1), all_logits=True) for each in ids]
    for threads in (1, 2):
        for isa in kernels().instruction_sets():
            monkeypatch.setenv(VARIABLE, isa)
            other = NativeDecoder(folders / kind, threads=threads)
            assert same_bits(other.run(ids, caches(other, len(ids)), all_logits=True), np.concatenate(expected))
            last = other.run(ids, caches(other, len(ids)))
            assert same_bits(last, np.stack([each[-1] for each in expected]))
    for size in (1, 2, 5, 16):  # ragged: parts of different sequences together
        kept = caches(decoder, len(ids))
        rows = [[] for _ in ids]
        for first in range(0, 33, size):
            going = [at for at, each in enumerate(ids) if len(each) > first]
            logits = decoder.run(
                [ids[at][first : first + size] for at in going], [kept[at] for at in going], all_logits=True
            )
            for at in going:
                count = len(ids[at][first : first + size])
                rows[at].append(logits[:count])
                logits = logits[count:]
        for parts, all_at_once in zip(rows, expected, strict=True):
            assert same_bits(np.concatenate(parts), all_at_once)


@pytest.mark.parametrize("kind", ["floats", "ternary"])
def test_what_was_cropped_was_never_fed(folders, kind):
    decoder, (ids, others) = NativeDecoder(folders / kind), prompts((40, 40))
    for length in (0, 1, 15, 16, 23, 40):
        cache, fresh = caches(decoder, 2)
        decoder.run([ids], [cache])
        cache.crop(length)
        assert cache.length == length
        if length:
            decoder.run([ids[:length]], [fresh])
        assert same_bits(
            decoder.run([others[:9]], [cache], all_logits=True), decoder.run([others[:9]], [fresh], all_logits=True)
        )


def test_generating_together_is_generating_alone(folders):
    decoder = NativeDecoder(folders / "floats", threads=1)
    for sampling in (None, Sampling(seed=3, temperature=1.5), Sampling(top_k=None, top_p=0.9)):
        alone = [decoder.generate([ids], 12, sampling=sampling)[0] for ids in prompts()]
        assert decoder.generate(prompts(), 12, sampling=sampling) == alone
    assert decoder.generate(prompts(), 12, sampling=Sampling(seed=1)) != decoder.generate(prompts(), 12)


def test_generating_stops_at_tokens_and_at_the_end_of_what_is_taken(folders):
    decoder = NativeDecoder(folders / "floats")
    free = decoder.generate(prompts(), 12)
    stop = {free[0][5], free[3][2]}
    for tokens, stopped in zip(free, decoder.generate(prompts(), 12, stop), strict=True):
        ends = [at for at, token in enumerate(tokens) if token in stop]
        assert stopped == tokens[: min(ends, default=12)]
    assert [len(each) for each in decoder.generate(prompts((60, 64, 3)), 12)] == [5, 1, 12]
    with pytest.raises(ConfigError, match="max-new-tokens"):
        decoder.generate(prompts(), 0)


@pytest.mark.parametrize(
    "wrong", [[], [[]], [[5], []], [[99]], [[-1]], [[5] * 65], [[5, 2**40]], [["a"]], None, [None]]
)
def test_tokens_are_checked(folders, wrong):
    decoder = NativeDecoder(folders / "floats")
    with pytest.raises(DataError):
        decoder.run(wrong, caches(decoder, len(wrong or [])))


def test_caches_are_checked_and_left_as_they_were(folders):
    decoder, other = NativeDecoder(folders / "floats"), NativeDecoder(folders / "other")
    cache, second = caches(decoder, 2)
    decoder.run([[5, 6, 7]], [cache])
    for tokens, given, reason in (
        ([[5]], [], "a cache for each"),
        ([[5]], [None], "no caches"),
        ([[5]], caches(other, 1), "another decoder"),
        ([[5]], caches(NativeDecoder(folders / "floats"), 1), "another decoder"),
        ([[5], [6]], [cache, cache], "in use"),
        ([[5] * 62], [cache], "room for 64"),
        ([[5], [5] * 62], [second, cache], "room for 64"),
        ([[5], [99]], [cache, second], "vocabulary of 99"),
    ):
        with pytest.raises(DataError, match=reason):
            decoder.run(tokens, given)
    assert (cache.length, second.length) == (3, 0)
    for length in (-1, 4):
        with pytest.raises(kernels().InputError, match="of 3 tokens"):
            cache.crop(length)
    assert cache.bytes > 0
    fresh = decoder.cache()
    assert same_bits(decoder.run([[8]], [cache]), decoder.run([[5, 6, 7, 8]], [fresh]))


def test_threads_that_ask_at_once_get_the_answers_they_get_alone(folders):
    decoder = NativeDecoder(folders / "ternary")
    alone = [decoder.generate([ids], 10)[0] for ids in prompts()]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda ids: decoder.generate([ids], 10)[0], prompts())) == alone


def test_torch_and_transformers_are_not_imported(folders):
    code = f"""
import sys
from slimformer.runtime.decoder import NativeDecoder
print(len(NativeDecoder({str(folders / "ternary")!r}).generate([[5, 6, 7]], 4)[0]))
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "4"


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("llama", {"model_type": "bert"}, "does not decode with `bert`"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("llama", {"hidden_act": "tanh"}, "activation `tanh`"),
        ("llama", {"attention_bias": True}, "has no `model.layers.0.self_attn.q_proj.bias`"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10.0}}, "yarn"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10.0}}, "`factor` `None`"),
        ("llama", {"rope_parameters": {"rope_theta": 0}}, "`rope_theta` `0`"),
        ("llama", {"rope_parameters": 5}, "`rope_parameters` `5`"),
        ("llama", {"num_attention_heads": 0}, "`num_attention_heads` `0`"),
        ("llama", {"num_attention_heads": 5, "head_dim": None}, "`num_attention_heads` `5`"),
        ("llama", {"head_dim": 7}, "`head_dim` `7`"),
        ("llama", {"head_dim": 32}, "have"),
        ("llama", {"intermediate_size": 5}, "`intermediate_size` `5`"),
        ("llama", {"num_hidden_layers": 0}, "no blocks"),
        ("llama", {"num_hidden_layers": 4}, "model.layers.3"),
        ("llama", {"max_position_embeddings": 0}, "does not run"),
        ("llama", {"tie_word_embeddings": False, "rms_norm_eps": "a"}, "rms_norm_eps"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_the_engine_does_not_run_says_so(tmp_path, family, settings, reason):
    save(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(EngineError, match=reason):
        NativeDecoder(tmp_path)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.self_attn.k_proj.weight"])
@pytest.mark.parametrize("change", ["gone", "narrow", "short", "nan"])
def test_forged_tensors_are_refused(tmp_path, name, change):
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    changed = tensors.pop(name)
    if change == "narrow":
        tensors[name] = changed[..., :-1].contiguous()
    if change == "short":
        tensors[name] = changed[: len(changed) // 3].contiguous()
    if change == "nan":
        tensors[name] = torch.full_like(changed, torch.nan)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(EngineError):
        NativeDecoder(tmp_path)


def test_answers_that_are_no_numbers_leave_caches_as_they_were(tmp_path):
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 3e38  # finite, and what comes of it is not
    save_file(tensors, tmp_path / "model.safetensors")
    decoder = NativeDecoder(tmp_path, threads=1)
    caches = [decoder.cache(), decoder.cache()]
    with pytest.raises(DataError, match="NaN or infinity"):
        decoder.run([[5, 6, 7], [8]], caches)
    assert [cache.length for cache in caches] == [0, 0]


def test_a_cache_can_be_asked_while_it_grows(tmp_path):
    save(tmp_path)
    decoder = NativeDecoder(tmp_path, threads=1)
    cache, seen, done = decoder.cache(), set(), threading.Event()

    def ask():
        while not done.is_set():
            seen.add((cache.length, cache.bytes))

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(40):
        decoder.run([[5]], [cache])
    done.set()
    asking.join()
    assert cache.length == 40
    assert max(size for _, size in seen) <= cache.bytes


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the weights of stories15M are not beside the checkout")
def test_real_weights_are_decoded_as_transformers_does():
    model = hf.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    tokenizer, decoder = hf.AutoTokenizer.from_pretrained(STORIES), NativeDecoder(STORIES, threads=1)
    texts = ["Once upon a time", "Lily and Ben", "The dog was sad because", "One day, a big bear", "Mom said"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    native = decoder.generate(ids, 48, stop=(2,))
    for given, added in zip(ids, native, strict=True):
        tokens = model.generate(torch.tensor([given]), max_new_tokens=48, do_sample=False, eos_token_id=2)[0].tolist()
        assert added == [token for token in tokens[len(given) :] if token != 2]


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the weights of stories15M are not beside the checkout")
def test_real_weights_in_ternary_are_decoded_as_integers_in_numpy(tmp_path):
    model = hf.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(STORIES)
    quantized(model).save_pretrained(tmp_path)
    decoder, exact = NativeDecoder(tmp_path, threads=1), ExactDecoder(tmp_path, DECODERS["llama"])
    close = []
    for text in ("Once upon a time", "Lily and Ben", "The dog was sad because", "One day, a big bear", "Mom said"):
        ids = tokenizer(text)["input_ids"]
        (written,) = decoder.generate([ids], 12)
        # Each token is the likeliest after those before, which is what writing them one by one comes to.
        read = [*ids, *written[:-1]]
        expected = exact.logits(read)
        assert expected[len(ids) - 1 :].argmax(axis=-1).tolist() == written
        apart = np.abs(decoder.run([read], caches(decoder, 1), all_logits=True) - expected).max(axis=-1)
        # Norms in 32 and in 64 bits can fall on two sides of a step: the tokens from there on are off by some steps.
        assert apart.max() < 0.1 * np.abs(expected).max()
        close += (apart < 1e-3).tolist()
    assert np.mean(close) > 0.5
