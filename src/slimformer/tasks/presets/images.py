"""Image classification."""

from __future__ import annotations

from slimformer.tasks.preset import Carve, Hub, Layout, Preset, register
from slimformer.tasks.splits import SYNONYMS

_TENTH = Carve("train", {"train": 0.9, "dev": 0.1}, ("image",))
_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_IDX = {"train": ("train-images*idx3-ubyte*",), "test": ("t10k-images*idx3-ubyte*",)}

MNIST = Preset(
    "mnist",
    "image-classification",
    "handwritten digits, 28 by 28",
    layouts=(Layout(_IDX, "idx", text=("image",), carve=_TENTH),),
    labels=_DIGITS,
    metrics=("accuracy",),
    max_length=28,
    hub=Hub("ylecun/mnist", ("image",)),
)
FASHION_MNIST = Preset(
    "fashion-mnist",
    "image-classification",
    "clothes, 28 by 28",
    layouts=(
        Layout(_IDX, "idx", text=("image",), label_names=dict(zip(_DIGITS, _CLOTHES, strict=True)), carve=_TENTH),
    ),
    labels=_CLOTHES,
    metrics=("accuracy",),
    max_length=28,
    hub=Hub("zalando-datasets/fashion_mnist", ("image",), label_names={"T - shirt / top": "T-shirt/top"}),
)
CIFAR10 = Preset(
    "cifar10",
    "image-classification",
    "animals and vehicles, 32 by 32 in colour",
    layouts=(
        Layout({split: SYNONYMS[split] for split in SYNONYMS}, "images", text=("image",), carve=_TENTH),
        Layout({"train": ("*.zip",), "test": ("*.zip",)}, "images", text=("image",), carve=_TENTH),
    ),
    labels=_THINGS,
    metrics=("accuracy",),
    max_length=32,
    hub=Hub("uoft-cs/cifar10", ("img",)),
)

register(MNIST, FASHION_MNIST, CIFAR10)
