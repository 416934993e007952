"""A plain ViT as a masked autoencoder and back: the same numbers, and a quarter of the work."""

from __future__ import annotations

import itertools
import shutil
import threading

import pytest
import torch
import transformers as hf
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from slimformer import Anatomy, models
from slimformer.errors import ConfigError
from slimformer.models.autoencoder import as_autoencoder, as_vit, encoder_weights, patch_count, unmasked_features
from slimformer.models.building import Shape
from slimformer.tasks.masking import PatchMasking
from tests import runs, zoo
from tests.conftest import SHARED

#: What a ViT may look like, besides its weights.
VARIANTS = {
    "plain": {},
    "eps": {"layer_norm_eps": 1e-3},
    "no-bias": {"qkv_bias": False},
    "pairs": {"image_size": (16, 16), "patch_size": [4, 4]},
    "grey": {"num_channels": 1},
    "relu": {"hidden_act": "relu"},
    "wide-heads": {"head_dim": 16},
}


def vit(kind: type = hf.ViTModel, **settings):
    torch.manual_seed(0)
    return zoo.enliven(kind(hf.ViTConfig(**{**zoo.IMAGE, **settings}))).eval()


def images(model, batch: int = 3) -> torch.Tensor:
    side = model.config.image_size
    side = side if isinstance(side, int) else side[0]
    return torch.randn(batch, model.config.num_channels, side, side, generator=torch.Generator().manual_seed(2))


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def deit():
    folder = SHARED / "weights" / "deit-tiny-patch16-224"
    if not folder.is_dir():
        pytest.skip(f"needs the real ViT in {folder}")
    return models.load_model(folder, hf.ViTForImageClassification).eval()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_of_all_patches_it_computes_what_the_vit_computes(variant, attention):
    model = vit(**VARIANTS[variant])
    model.set_attn_implementation(attention)
    autoencoder = as_autoencoder(model)
    assert autoencoder.config._attn_implementation == attention
    pixels = images(model)
    with torch.no_grad():
        expected = model(pixels).last_hidden_state
        features = unmasked_features(autoencoder, pixels)
    assert features.shape == (3, 1 + 16, 48)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)
    assert same(as_vit(autoencoder, like=model).state_dict(), model.state_dict())


def test_a_real_vit_is_the_same_before_between_and_after(deit):
    autoencoder = as_autoencoder(deit)
    pixels = images(deit, 2)
    with torch.no_grad():
        expected = deit.vit(pixels).last_hidden_state
        torch.testing.assert_close(unmasked_features(autoencoder, pixels), expected, rtol=0, atol=1e-6)
        after = as_vit(autoencoder, like=deit)
        assert torch.equal(after(pixels).logits, deit(pixels).logits)
    assert same(after.state_dict(), deit.state_dict())
    assert after.config.to_dict() == deit.config.to_dict()


def test_what_was_trained_comes_back_and_nothing_else():
    model = vit(hf.ViTForImageClassification, num_labels=5)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    autoencoder = as_autoencoder(model).train()
    optimizer = torch.optim.SGD(autoencoder.parameters(), lr=0.1)
    autoencoder(images(model), noise=zoo.inputs_for("vit_mae")["noise"]).loss.backward()
    optimizer.step()
    trained = as_vit(autoencoder, like=model)
    assert type(trained) is hf.ViTForImageClassification
    assert same(model.state_dict(), before)  # the ViT itself is left alone
    assert same(encoder_weights(trained), encoder_weights(autoencoder))
    changed = {name for name, weight in trained.state_dict().items() if not torch.equal(weight, before[name])}
    # Adding the same to all keys changes no attention, so their biases have no gradient worth the name.
    encoder = {name for name in before if name.startswith("vit.") and not name.endswith("k_proj.bias")}
    assert encoder <= changed <= {name for name in before if name.startswith("vit.")}
    assert "vit.embeddings.position_embeddings" in changed


def test_a_pooler_stays_behind_and_is_there_again():
    model = vit()
    assert model.pooler is not None
    assert same(as_vit(as_autoencoder(model), like=model).state_dict(), model.state_dict())


def test_the_encoder_sees_a_quarter_of_the_patches():
    autoencoder = as_autoencoder(vit(image_size=32))
    seen = []
    autoencoder.vit.layers[0].register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    pixels = images(autoencoder, 2)
    autoencoder(pixels, noise=torch.rand(2, 64))
    unmasked_features(autoencoder, pixels)
    assert seen == [(2, 1 + 16, 48), (2, 1 + 64, 48)]


def test_hidden_patches_cost_nothing_in_the_encoder(deit):
    """49 of 196 patches and [CLS]: all matrices of the blocks see 50 tokens, the patch embedding sees all."""
    autoencoder = as_autoencoder(deit)
    autoencoder.set_attn_implementation("eager")  # matrix products that are counted
    pixels = images(deit, 1)

    def flops(run) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run()
        return counter.get_total_flops()

    hidden, layers, ffn = 192, 12, 768
    patches = 2 * 196 * 16 * 16 * 3 * hidden

    def blocks(tokens: int) -> int:
        return layers * 2 * tokens * (4 * hidden * hidden + 2 * hidden * ffn + 2 * tokens * hidden)

    noise = torch.rand(1, 196)
    assert flops(lambda: autoencoder.vit(pixels, noise=noise)) == patches + blocks(50)
    assert flops(lambda: unmasked_features(autoencoder, pixels)) == patches + blocks(197)
    assert (patches + blocks(50)) / (patches + blocks(197)) < 0.26


def test_a_new_decoder_follows_from_the_seed_and_can_tell_patches_apart():
    model = vit()
    one, again, other = (as_autoencoder(model, seed=seed) for seed in (1, 1, 2))
    assert same(one.state_dict(), again.state_dict())
    assert not torch.equal(one.decoder.decoder_pred.weight, other.decoder.decoder_pred.weight)
    assert not torch.equal(one.decoder.mask_token, other.decoder.mask_token)
    assert same(encoder_weights(one), encoder_weights(other))
    positions = one.decoder.decoder_pos_embed
    assert len(positions[0].unique(dim=0)) == 1 + 16
    assert not positions.requires_grad
    assert one.vit.embeddings.position_embeddings.requires_grad
    with torch.no_grad():
        logits = one(images(model, 1), noise=torch.arange(16.0)[None] / 16).logits[0, 4:]  # of what is hidden
    assert len(logits.unique(dim=0)) == 12


@pytest.mark.parametrize(
    ("settings", "shape", "expected"),
    [
        ({}, Shape(), (48, 1, 2, 192)),
        ({"hidden_size": 192, "num_attention_heads": 3}, Shape(), (192, 6, 2, 768)),
        ({"hidden_size": 768, "num_attention_heads": 12}, Shape(), (512, 16, 2, 2048)),
        ({}, Shape(layers=1, hidden=24, heads=4, ffn=30), (24, 4, 1, 30)),
        ({}, Shape(heads=5), (40, 5, 2, 160)),
        ({"hidden_size": 54, "num_attention_heads": 3}, Shape(), (52, 1, 2, 208)),
    ],
)
def test_sizes_of_a_decoder(settings, shape, expected):
    autoencoder = as_autoencoder(vit(num_hidden_layers=1, **settings), shape)
    config = autoencoder.config
    assert expected == (
        config.decoder_hidden_size,
        config.decoder_num_attention_heads,
        config.decoder_num_hidden_layers,
        config.decoder_intermediate_size,
    )
    assert autoencoder.decoder.decoder_pred.weight.shape == (48, expected[0])


def test_a_masked_autoencoder_is_kept_as_it_is():
    autoencoder = zoo.build_headed("vit_mae")
    assert as_autoencoder(autoencoder, mask_ratio=0.9) is autoencoder
    assert autoencoder.config.mask_ratio == 0.5
    bare = zoo.build("vit_mae")
    decoded = as_autoencoder(bare, mask_ratio=0.9)
    assert same(encoder_weights(decoded), encoder_weights(bare))
    assert decoded.config.mask_ratio == 0.9
    assert not decoded.vit.embeddings.position_embeddings.requires_grad  # as in the model it was made of


def test_an_autoencoder_from_the_beginning_becomes_a_bare_vit(tmp_path):
    autoencoder = zoo.build_headed("vit_mae")
    plain = as_vit(autoencoder)
    assert same(plain.state_dict(), encoder_weights(autoencoder))
    assert all(parameter.requires_grad for parameter in plain.parameters())
    plain.save_pretrained(tmp_path)
    loaded = models.load_model(tmp_path, hf.AutoModelForImageClassification, new_head=True)
    assert same(encoder_weights(loaded), encoder_weights(autoencoder))
    pixels = images(autoencoder)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.vit(pixels).last_hidden_state, unmasked_features(autoencoder, pixels), rtol=0, atol=1e-6
        )


def test_types_of_numbers_and_modes_are_kept():
    model = vit().to(torch.bfloat16).train()
    autoencoder = as_autoencoder(model)
    assert {weight.dtype for weight in autoencoder.parameters()} == {torch.bfloat16}
    assert autoencoder.training
    assert as_vit(autoencoder.float(), like=model).dtype == torch.float32  # what was trained is not rounded
    assert model.dtype == torch.bfloat16
    precise = zoo.enliven(vit().double())
    assert same(encoder_weights(as_autoencoder(precise)), encoder_weights(precise))
    assert same(as_vit(as_autoencoder(precise), like=precise).state_dict(), precise.state_dict())


def test_another_thread_sees_its_patches_hidden_meanwhile():
    """A forward over all patches is stopped in its first block while another thread runs the model masked."""
    autoencoder = as_autoencoder(vit())
    pixels, noise = images(autoencoder), zoo.inputs_for("vit_mae")["noise"]
    with torch.no_grad():
        alone = autoencoder(pixels, noise=noise)
        whole = unmasked_features(autoencoder, pixels)
    results = {}

    def masked() -> None:
        with torch.no_grad():
            results["masked"] = autoencoder(pixels, noise=noise)

    def halfway(*_) -> None:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=masked)
            other.start()
            other.join()

    handle = autoencoder.vit.layers[0].register_forward_pre_hook(halfway)
    with torch.no_grad():
        features = unmasked_features(autoencoder, pixels)
    handle.remove()
    assert torch.equal(results["masked"].logits, alone.logits)
    assert torch.equal(features, whole)


def test_the_noise_of_a_run_hides_the_same_patches_in_any_batch():
    """As after a resume, or in another process: what is hidden of an image does not depend on what was before it."""
    autoencoder = as_autoencoder(vit())
    pixels = images(autoencoder, 6)
    masking = PatchMasking(patch_count(autoencoder.config), seed=3)
    noise = torch.stack([torch.from_numpy(masking({}, index, epoch=1)["noise"]) for index in range(6)])
    with torch.no_grad():
        whole = autoencoder(pixels, noise=noise)
        parts = [autoencoder(pixels[rows], noise=noise[rows]) for rows in (slice(0, 4), slice(4, 6))]
    assert torch.equal(whole.mask, torch.cat([part.mask for part in parts]))
    assert whole.mask.sum(1).tolist() == [12] * 6


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (lambda: zoo.build("deit"), {}, "the model is a `deit`, .* give a model of type `vit` or `vit_mae`"),
        (lambda: zoo.build("bert"), {}, "the model is a `bert`"),
        (lambda: vit(image_size=(16, 32)), {}, "`image_size` is 16 by 32"),
        (lambda: vit(patch_size=(4, 2)), {}, "`patch_size` is 4 by 2"),
        (lambda: vit(image_size=18), {}, "`patch_size` is 4, which does not divide `image_size` 18"),
        (vit, {"mask_ratio": 0.99}, "`mask_ratio` is 0.99, and of 16 patches"),
        (vit, {"mask_ratio": 0.0}, "`mask_ratio` is 0, "),
        (vit, {"mask_ratio": float("nan")}, "`mask_ratio` is nan, "),
        (vit, {"decoder": Shape(hidden=30)}, "`hidden` of the decoder is 30; give a multiple of 4"),
        (vit, {"decoder": Shape(hidden=32, heads=5)}, "`heads` of the decoder is 5, which does not divide"),
    ],
)
def test_what_cannot_be_an_autoencoder_is_refused(model, settings, message):
    with pytest.raises(ConfigError, match=message):
        as_autoencoder(model(), **settings)


def test_blocks_of_widths_of_their_own_are_refused():
    model = vit()
    Anatomy.of(model).blocks[1].keep_neurons(range(32))
    with pytest.raises(ConfigError, match=r"widths of their own, .* start from the model it was cut from"):
        as_autoencoder(model)


def test_a_vit_of_another_shape_is_refused():
    autoencoder = as_autoencoder(vit())
    with pytest.raises(ConfigError, match=r"`layers.2\S*` is \[\S+\] in one model and missing in the other"):
        as_vit(autoencoder, like=vit(num_hidden_layers=2))
    with pytest.raises(ConfigError, match="give the ViT that the autoencoder was made of"):
        as_vit(autoencoder, like=vit(hidden_size=96))


@pytest.mark.slow
def test_the_result_is_fine_tuned_like_any_vit(tmp_path):
    base = runs.viewer(tmp_path / "base")
    model = models.load_model(base, hf.AutoModel)
    autoencoder = as_autoencoder(model, Shape(layers=1))
    autoencoder(images(model), noise=torch.rand(3, 16)).loss.backward()
    torch.optim.SGD(autoencoder.parameters(), lr=0.1).step()
    trained = as_vit(autoencoder, like=model)
    assert not same(encoder_weights(trained), encoder_weights(model))
    trained.save_pretrained(tmp_path / "vit")
    shutil.copy(base / "preprocessor_config.json", tmp_path / "vit")
    assert same(encoder_weights(models.load_model(tmp_path / "vit", hf.AutoModel)), encoder_weights(autoencoder))
    for split, label, number in itertools.product(("train", "dev"), ("dark", "light"), range(4)):
        folder = tmp_path / "images" / split / label
        folder.mkdir(parents=True, exist_ok=True)
        shade = 20 * number + (0 if label == "dark" else 120)
        Image.new("RGB", (28, 28), (shade, 60, shade)).save(folder / f"{number}.png")
    done = runs.finetune(
        tmp_path / "vit", "image-classification", tmp_path / "images", tmp_path / "out", "--max-steps", 1, "--json"
    )
    assert "accuracy" in done.json["metrics"]
