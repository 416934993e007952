"""Labels of images beside those of Transformers' pipeline."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from slimformer.errors import ConfigError, DataError, SlimformerError
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs, zoo

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

CLASSES = {"vit": hf.ViTForImageClassification, "deit": hf.DeiTForImageClassification}


def model(folder, family, labels=7, **settings):
    config = zoo.CONFIGS[family]()
    config.num_labels = labels
    torch.manual_seed(0)
    zoo.enliven(CLASSES[family](config)).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def images(folder):
    """Images of several sizes and kinds, the last with one channel."""
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 256, shape, np.uint8) for shape in ((40, 30, 3), (9, 21, 3), (16, 16, 3), (20, 20))]
    paths = [folder / f"{number}.png" for number in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        Image.fromarray(array).save(path)
    return arrays, [str(path) for path in paths]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("vit", {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}),
        (
            "deit",
            {
                "image_processor_type": "DeiTImageProcessor",
                "size": {"height": 20, "width": 22},
                "crop_size": {"height": 16, "width": 16},
                "image_mean": [0.4, 0.5, 0.6],
                "image_std": [0.2, 0.3, 0.4],
            },
        ),
        (
            "deit",
            {
                "image_processor_type": "DeiTImageProcessor",
                "size": {"shortest_edge": 16},
                "crop_size": {"height": 16, "width": 16},
                "resample": 2,
                "do_normalize": False,
            },
        ),
    ],
)
def test_labels_are_those_of_the_pipeline(tmp_path, family, settings):
    folder = model(tmp_path, family, **settings)
    _, paths = images(tmp_path)
    pipeline, native = hf.pipeline("image-classification", str(folder)), NativeModel(folder)
    opened = [Image.open(path) for path in paths]
    for asked in (paths, opened, paths[0], opened[0]):
        check_alike(native(asked, batch_size=3), pipeline(asked))
    check_alike(native(paths, top_k=2), pipeline(paths, top_k=2))
    check_alike(native(paths[0], function_to_apply="none"), pipeline(paths[0], function_to_apply="none"))
    assert len(native(paths[0])) == 5
    assert len(native(paths[0], top_k=None)) == 7


def check_alike(answers, expected):
    for one, other in zip(flat(answers), flat(expected), strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def flat(answers):
    return [label for answer in answers for label in (answer if isinstance(answer, list) else [answer])]


def test_arrays_are_images_too(tmp_path):
    folder = model(tmp_path, "vit", image_processor_type="ViTImageProcessor", size=16)
    arrays, paths = images(tmp_path)
    native = NativeModel(folder)
    assert native(arrays) == native(paths)
    assert native(arrays[0]) == native(paths[0]) == native(arrays[0].transpose(2, 0, 1))
    assert native(np.stack([arrays[2], arrays[2]])) == native([paths[2], paths[2]])
    pixels = native._images.read(paths[:1])
    processor = hf.ViTImageProcessorPil(size={"height": 16, "width": 16})
    np.testing.assert_allclose(pixels[0], processor(arrays[0])["pixel_values"][0], atol=1e-6)


def test_what_is_no_image_is_refused(tmp_path, monkeypatch):
    usual = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    native = NativeModel(model(tmp_path, "vit", **usual))
    (tmp_path / "text.png").write_text("no image")
    for call, error, words in (
        (lambda: native(str(tmp_path / "text.png")), DataError, "cannot be opened as an image"),
        (lambda: native("nowhere.png"), DataError, "cannot be opened as an image"),
        (lambda: native("https://a.b/c.png"), DataError, "lies on another machine; fetch it"),
        (lambda: native([]), DataError, "is no image"),
        (lambda: native([5]), DataError, "is no image"),
        (lambda: native(np.zeros((8, 8, 3))), DataError, "`float64` of shape .* give numbers of uint8"),
        (lambda: native(np.zeros((8, 8, 4), np.uint8)), DataError, "is no image"),
        (lambda: native(str(tmp_path / "text.png"), timeout=3), ConfigError, "`timeout` is `3`"),
        (lambda: native.encode("so"), ConfigError, "ask it with `predict`"),
    ):
        with pytest.raises(error, match=words):
            call()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "PIL.Image", None)
        with pytest.raises(ConfigError, match="pip install pillow"):
            native("nowhere.png")
    with pytest.raises(ConfigError, match=r"no head that gives labels; take hidden states from `encoder.run_images`"):
        NativeModel(runs.viewer(tmp_path / "bare")).predict("nowhere.png")
    for changed, words in (
        ({"image_processor_type": "ConvNextImageProcessor"}, "prepares images by `ConvNextImageProcessor`"),
        ({"image_processor_type": ["a"]}, r"prepares images by `\['a'\]`, and the engine by ViTImageProcessor"),
        ({**usual, "image_mean": 1}, "has the image_mean `1`"),
        ({**usual, "image_std": [0.5, 0.0, 0.5]}, "has the image_std"),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(changed))
        with pytest.raises(EngineError, match=words):
            NativeModel(tmp_path)
    array = np.zeros((8, 8, 3), np.uint8)
    for changed in ({"size": {"longest_edge": 16}}, {"do_center_crop": True, "crop_size": 32}, {"resample": 99}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**usual, **changed}))
        with pytest.raises(SlimformerError, match=r"which the engine does not scale images to|in a way that fails"):
            NativeModel(tmp_path)(array)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**usual, "do_resize": False}))
    with pytest.raises(DataError, match=r"give numbers, \[images, channels, 16, 16\]"):
        NativeModel(tmp_path)(array)
    with pytest.raises(DataError, match="give such of one size"):
        NativeModel(tmp_path)([array, array[:4]])
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": usual}))
    for content, words in (("{", "cannot be read"), ("[5]", r"holds `\[5\]`, which is no object")):
        (tmp_path / "preprocessor_config.json").write_text(content)
        with pytest.raises(EngineError, match=rf"preprocessor_config\.json` {words}"):
            NativeModel(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    larger = np.zeros((20, 20, 3), np.uint8)
    assert len(NativeModel(tmp_path)(larger)) == 5
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": 5}))
    with pytest.raises(EngineError, match=r"has no preprocessor_config\.json with settings"):
        NativeModel(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(EngineError, match=r"has no preprocessor_config\.json"):
        NativeModel(tmp_path)
    assert NativeEncoder(tmp_path).run_images(np.zeros((1, 3, 16, 16), np.float32)).shape == (1, 7)
