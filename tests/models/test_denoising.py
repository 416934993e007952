"""An encoder that decodes too: the same weights, one vector, and nothing of what comes later."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from slimformer import Anatomy
from slimformer.errors import CheckpointError
from slimformer.models.denoising import (
    CROSS,
    FAMILIES,
    as_decoder,
    as_denoiser,
    as_encoder,
    decode,
    encoder_weights,
)
from tests import zoo


def tokens(batch: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(1))


def vectors(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 48, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_vector_it_computes_what_the_encoder_computes(family, attention):
    encoder = zoo.build(family, attention)
    denoiser = as_denoiser(encoder).eval()
    ids, mask = tokens(), torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    for attention_mask in (None, mask):
        expected, states = (
            each(ids, attention_mask=attention_mask).last_hidden_state for each in (encoder, denoiser.base_model)
        )
        assert torch.equal(states, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_is_the_encoder_and_cross_attention(family):
    encoder = zoo.build(family)
    denoiser = as_denoiser(encoder)
    base = Anatomy.of(denoiser).base
    shared = encoder_weights(denoiser)
    rest = [name for name, _ in base.named_parameters() if name not in shared]
    assert rest
    assert all(CROSS in name for name in rest)
    assert {name for name in encoder.state_dict() if "pooler" not in name} == {*shared}
    # One storage: what changes in the encoder changes in the decoder.
    weights = dict(base.named_parameters())
    assert all(weight.data_ptr() == weights[name].data_ptr() for name, weight in shared.items() if name in weights)
    assert base.get_input_embeddings().weight is Anatomy.of(denoiser).word_embedding.module.weight
    before = decode(denoiser.eval(), vectors(), tokens())
    with torch.no_grad():
        Anatomy.of(denoiser).blocks[0].query.module.weight.add_(0.5)
    assert not torch.allclose(decode(denoiser, vectors(), tokens()), before)
    assert not torch.equal(base(tokens()).last_hidden_state, encoder(tokens()).last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_is_predicted_from_the_vector_and_what_stands_before_it(family):
    denoiser = as_denoiser(zoo.build(family)).eval()
    ids = tokens()
    logits = decode(denoiser, vectors(), ids)
    changed = ids.clone()
    changed[:, 6:] = 7
    after = decode(denoiser, vectors(), changed)
    torch.testing.assert_close(after[:, :6], logits[:, :6])
    assert not torch.allclose(after[:, 6:], logits[:, 6:])
    assert not torch.allclose(decode(denoiser, 2 * vectors(), ids)[:, 0], logits[:, 0])
    # As a decoder of Transformers it says the same, with a mask of its own.
    outputs = as_decoder(denoiser)(ids, encoder_hidden_states=vectors()[:, None], use_cache=False)
    torch.testing.assert_close(outputs.logits, logits)


def test_a_decoder_can_be_saved_and_opened(tmp_path):
    denoiser = as_denoiser(zoo.build("bert"), seed=4).eval()
    logits = decode(denoiser, vectors(), tokens())
    as_decoder(denoiser).save_pretrained(tmp_path)
    again = as_denoiser(hf.BertLMHeadModel.from_pretrained(tmp_path)).eval()
    assert torch.equal(decode(again, vectors(), tokens()), logits)
    assert not torch.equal(decode(as_denoiser(zoo.build("bert"), seed=5).eval(), vectors(), tokens()), logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_can_be_taken_out(family):
    encoder = zoo.build(family)
    denoiser = as_denoiser(encoder).eval()
    for each in (denoiser, as_decoder(denoiser)):
        out = as_encoder(each)
        assert torch.equal(out.base_model(tokens()).last_hidden_state, encoder(tokens()).last_hidden_state)
    assert type(out) is hf.AutoModelForMaskedLM._model_mapping[type(encoder.config)]
    assert not any(CROSS in name for name in out.state_dict())


def test_a_head_that_is_there_is_taken_along():
    torch.manual_seed(0)
    masked = zoo.enliven(hf.BertForMaskedLM(zoo.CONFIGS["bert"]()))
    denoiser = as_denoiser(masked)
    head = masked.cls.state_dict()
    assert all(torch.equal(value, head[name]) for name, value in denoiser.cls.state_dict().items())
    assert denoiser.cls.predictions.decoder.weight is denoiser.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("family", ["mpnet", "distilbert", "modernbert", "gpt2"])
def test_families_without_such_a_decoder_are_refused(family):
    with pytest.raises(CheckpointError, match=f"is a `{family}`, of which Transformers has no decoder"):
        as_denoiser(zoo.build(family))
