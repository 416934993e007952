"""What is fuzzed: each target takes bytes and reads them as a user's file; only a `SlimformerError` may come of it.

Where a file carries a sum over itself, there is a target that makes the sum fit, so that what stands behind is reached.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import SlimformerError
from tests.fuzz import seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


#: Bits of a mask that are unpacked.
MOST_BITS = 10**6


@dataclass(frozen=True)
class Target:
    """One way into the code.

    Args:
        make: Builds the function that takes the bytes; what it needs is imported there.
        seeds: Whole examples to start from.
        runs: Inputs to try where time is short.
    """

    make: Callable[[Path], Callable[[bytes], None]]
    seeds: Callable[[], Sequence[bytes]]
    runs: int = 3_000

    def function(self) -> Callable[[bytes], None]:
        """The function to fuzz, in a folder of its own."""
        run = self.make(Path(tempfile.mkdtemp(prefix="slimformer-fuzz-")))

        def guarded(data: bytes) -> None:
            with suppress(SlimformerError):
                run(data)

        return guarded


def _manifest(folder: Path) -> Callable[[bytes], None]:
    from slimformer.artifact.manifest import Manifest

    return lambda data: _always(Manifest.from_bytes(data))


def _signed_manifest(folder: Path) -> Callable[[bytes], None]:
    from atheris import FuzzedDataProvider

    from slimformer.artifact.card import write_card
    from slimformer.artifact.manifest import Manifest
    from tests.artifact.forging import signed
    from tests.fuzz.mutating import mutated

    contents = [json.loads((seeds.ARTIFACTS / name / "slimformer.json").read_bytes()) for name in ("mask", "ternary")]

    def run(data: bytes) -> None:
        provider = FuzzedDataProvider(data)
        content = {**contents[provider.ConsumeIntInRange(0, 1)]}
        del content["sha256"]
        changed = mutated(content, provider)
        if isinstance(changed, dict):
            write_card(Manifest.from_bytes(signed(changed)))

    return run


def _onnx_record(folder: Path) -> Callable[[bytes], None]:
    from atheris import FuzzedDataProvider

    from slimformer.artifact.storage.onnx import OnnxRecord
    from slimformer.artifact.storage.onnx.record import KEY
    from tests.fuzz.mutating import mutated

    content = json.loads(seeds.ONNX_RECORD)

    def run(data: bytes) -> None:
        with suppress(SlimformerError):
            OnnxRecord.read({KEY: data.decode(errors="replace")}, "model.onnx")
        record = OnnxRecord.read({KEY: json.dumps(mutated(content, FuzzedDataProvider(data)))}, "model.onnx")
        assert record is not None
        record.made_for()
        if record.sentence is not None:
            record.sentence.settings()
        record.config("model.onnx")

    return run


def _probe(folder: Path) -> Callable[[bytes], None]:
    from atheris import FuzzedDataProvider

    from slimformer.artifact.probe import Probe
    from tests.fuzz.mutating import mutated

    content = json.loads((seeds.ARTIFACTS / "mask" / "probe.json").read_bytes())

    def run(data: bytes) -> None:
        with suppress(SlimformerError):
            Probe.from_bytes(data, "probe.json")
        probe = Probe.from_bytes(json.dumps(mutated(content, FuzzedDataProvider(data))).encode(), "probe.json")
        for given in probe.inputs.values():
            given.tensor()

    return run


def _mask_file(folder: Path) -> Callable[[bytes], None]:
    path = folder / "mask.safetensors"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        _read_masks(path)

    return run


def _signed_mask_file(folder: Path) -> Callable[[bytes], None]:
    """Mask files of both formats with other headers and tensors, and with the sum that fits."""
    from atheris import FuzzedDataProvider
    from pydantic import ValidationError
    from safetensors import safe_open
    from safetensors.torch import save_file

    from slimformer.artifact.storage.mask_file import HEADER, SUM, Header, _sum
    from tests.fuzz.mutating import mutated

    path = folder / "mask.safetensors"
    originals = []
    for original in (seeds.ARTIFACTS / "mask" / "mask.safetensors", _newest(folder / "newest.safetensors")):
        with safe_open(original, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            originals.append((json.loads(file.metadata()[HEADER]), tensors))

    def run(data: bytes) -> None:
        provider = FuzzedDataProvider(data)
        header, whole = originals[provider.ConsumeIntInRange(0, 1)]
        tensors = {**whole}
        for _ in range(provider.ConsumeIntInRange(0, 2)):
            name = provider.PickValueInList(sorted(tensors))
            tensor = tensors.pop(name)
            if provider.ConsumeBool():
                name = provider.ConsumeUnicodeNoSurrogates(12) or "x"
            if provider.ConsumeBool():
                tensor = tensor.float()
            tensors[name] = tensor.flatten()[: provider.ConsumeIntInRange(0, tensor.numel())].contiguous()
        content = mutated(header, provider)
        if "sha256" in header and isinstance(content, dict):  # since format 2 it lies in the header
            with suppress(ValidationError):
                content = {**content, "sha256": Header.model_validate(content).sum_with(tensors)}
        text = json.dumps(content)
        save_file(tensors, path, metadata={HEADER: text, SUM: _sum(text, tensors)})
        _read_masks(path)

    return run


def _newest(path: Path) -> Path:
    """A mask of the newest format."""
    from slimformer.artifact.storage.mask_file import MaskFile
    from slimformer.formats import gaps

    mask = MaskFile.read(seeds.ARTIFACTS / "mask" / "mask.safetensors")
    replace(mask, bits={name: gaps.encode(mask.mask(name)) for name in mask.bits}).write(path)
    return path


def _read_masks(path: Path) -> None:
    from slimformer.artifact.storage.mask_file import MaskFile

    mask = MaskFile.read(path)
    for name, shape in mask.shapes.items():
        if math.prod(shape) < MOST_BITS:  # else no model has a weight for them, which is found out before
            mask.mask(name)


def _gaps(folder: Path) -> Callable[[bytes], None]:
    import torch

    from slimformer.formats import gaps

    def run(data: bytes) -> None:
        count = int.from_bytes(data[:2], "little")
        gaps.decode(torch.frombuffer(bytearray(data[2:] or b"\0"), dtype=torch.uint8), count)

    return run


def _coded() -> list[bytes]:
    import torch

    from slimformer.formats import gaps

    kinds = [torch.arange(600) % step == 0 for step in (1, 2, 30, 299, 1_000)]
    return [(600).to_bytes(2, "little") + gaps.encode(flags).numpy().tobytes() for flags in [*kinds, ~kinds[2]]]


def _packed(folder: Path) -> Callable[[bytes], None]:
    """Codes and scales of a packed checkpoint, and what its config says of them."""
    from atheris import FuzzedDataProvider
    from safetensors.torch import load_file, save_file

    from slimformer.artifact.loading import load_model
    from tests.fuzz.mutating import mutated

    shutil.copytree(seeds.ARTIFACTS / "ternary-small", folder / "model")
    weights, config = folder / "model" / "model.safetensors", folder / "model" / "config.json"
    whole, content = load_file(weights), json.loads(config.read_bytes())

    def run(data: bytes) -> None:
        provider = FuzzedDataProvider(data)
        tensors = {**whole}
        for _ in range(provider.ConsumeIntInRange(0, 2)):
            name = provider.PickValueInList(sorted(tensors))
            rows = provider.ConsumeIntInRange(0, len(tensors[name]))
            tensors[name] = (tensors[name][:rows] if provider.ConsumeBool() else tensors[name].float()).contiguous()
        save_file(tensors, weights, metadata={"format": "pt"})
        packing: Any = mutated(content["quantization_config"], provider)
        config.write_text(json.dumps({**content, "quantization_config": packing}))
        load_model(folder / "model")

    return run


def _engine_file(folder: Path) -> Callable[[bytes], None]:
    """A file of weights of any bytes, for the native engine."""
    from slimformer.runtime.encoder import NativeEncoder

    shutil.copytree(seeds.ARTIFACTS / "rounded", folder / "model")

    def run(data: bytes) -> None:
        (folder / "model" / "model.safetensors").write_bytes(data)
        NativeEncoder(folder / "model", threads=1).run([[5, 6, 7]])

    return run


def _engine(folder: Path) -> Callable[[bytes], None]:
    """Whole checkpoints for the native engine with other settings, and tensors of other names, shapes and types."""
    import numpy as np
    from atheris import FuzzedDataProvider
    from safetensors.numpy import load_file, save_file

    from slimformer.runtime.encoder import NativeEncoder
    from slimformer.runtime.settings import ROUNDING
    from tests.fuzz.mutating import mutated

    originals = [seeds.rotary()]
    for source in (seeds.ARTIFACTS / name for name in ("rounded", "int4", "int8", "base-odd", "image-classifier")):
        config = json.loads((source / "config.json").read_bytes())
        if "quantization_config" in config:
            config["quantization_config"]["activations"] = ROUNDING
        originals.append((config, load_file(source / "model.safetensors")))
    model = folder / "model"
    model.mkdir()

    def ask(config: Any, tensors: dict[str, Any], side: int) -> None:
        save_file(tensors, model / "model.safetensors")
        (model / "config.json").write_text(json.dumps(config))
        engine = NativeEncoder(model, threads=1)
        if engine.reads_images:
            engine.run_images(np.ones((1, 3, side, side), np.float32))
        else:
            engine.run([[5, 6, 7], [8]])

    def run(data: bytes) -> None:
        provider = FuzzedDataProvider(data)
        config, whole = originals[provider.ConsumeIntInRange(0, len(originals) - 1)]
        tensors = {**whole}
        for _ in range(provider.ConsumeIntInRange(0, 2)):
            name = provider.PickValueInList(sorted(tensors))
            changed = _changed(tensors.pop(name), provider)
            tensors[provider.PickValueInList([name, name, name, *sorted(whole)])] = changed
        ask(mutated(config, provider), tensors, config.get("image_size", 0))

    for config, whole in originals:  # else what the engine refuses would be all that is tried
        ask(config, whole, config.get("image_size", 0))
    return run


def _changed(tensor: Any, provider: Any) -> Any:
    """A tensor of another shape or type, or with another byte."""
    import numpy as np

    shape = [provider.ConsumeIntInRange(0, size + 1) if provider.ConsumeBool() else size for size in tensor.shape]
    kind = provider.PickValueInList([tensor.dtype, tensor.dtype, np.float16, np.float64, np.uint8, np.int8])
    with np.errstate(invalid="ignore"):
        changed = np.resize(tensor, shape).astype(kind)
    if provider.ConsumeBool():
        changed = changed.reshape(-1)
    if provider.ConsumeBool() and changed.size:
        at = provider.ConsumeIntInRange(0, changed.nbytes - 1)
        changed.reshape(-1).view(np.uint8)[at] = provider.ConsumeIntInRange(0, 255)
    return changed


def _yaml(folder: Path) -> Callable[[bytes], None]:
    from slimformer.methods.finetune.config import FinetuneConfig

    path = folder / "run.yaml"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        FinetuneConfig.read(path, {})

    return run


def _table(reader: str, *endings: str) -> Callable[[Path], Callable[[bytes], None]]:
    """A reader of labelled data; the first byte chooses the ending."""

    def make(folder: Path) -> Callable[[bytes], None]:
        from slimformer.tasks.readers import read

        def run(data: bytes) -> None:
            path = folder / f"train.{endings[data[0] % len(endings) if data else 0]}"
            path.write_bytes(data[1:])
            read(path, reader, "train")  # type: ignore[arg-type]

        return run

    return make


def _mapping(folder: Path) -> Callable[[bytes], None]:
    """The names of labels beside texts."""
    from slimformer.tasks.readers import read

    path = folder / "train_text.txt"
    path.write_text("a film\na plot\n")
    (folder / "train_labels.txt").write_text("0\n1\n")

    def run(data: bytes) -> None:
        (folder / "mapping.txt").write_bytes(data)
        read(path, "text-and-labels", "train")

    return run


def _image(folder: Path) -> Callable[[bytes], None]:
    from slimformer.tasks.readers.images import ImageFile

    path = folder / "picture.png"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        image = ImageFile(str(path))
        with suppress(SlimformerError):
            image.check()
        image.open()

    return run


def _zip(folder: Path) -> Callable[[bytes], None]:
    from slimformer.tasks.readers import images

    path = folder / "pictures.zip"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        images._zip_handle.cache_clear()
        for split in images.split_folders(path):
            images.read_image_folder(path, split)

    return run


def _corpus(folder: Path) -> Callable[[bytes], None]:
    from slimformer.corpus import open_corpus
    from slimformer.corpus.opening import ENDINGS

    def run(data: bytes) -> None:
        path = folder / f"text{ENDINGS[data[0] % len(ENDINGS) if data else 0]}"
        path.write_bytes(data[1:])
        for _ in open_corpus(path, segment=64).documents():
            pass

    return run


def _requests(folder: Path) -> Callable[[bytes], None]:
    from slimformer.inference.requests import open_requests

    endings = ("txt", "jsonl", "csv", "tsv", "txt.gz")

    def run(data: bytes) -> None:
        path = folder / f"asked.{endings[data[0] % len(endings) if data else 0]}"
        path.write_bytes(data[1:])
        with open_requests(path) as requests:
            for _ in requests:
                pass

    return run


def _always(value: object) -> None:
    assert value is not None


def _each(*contents: bytes) -> Callable[[], list[bytes]]:
    """Seeds whose first byte chooses the ending."""
    return lambda: [bytes([number]) + content for number, content in enumerate(contents)]


def _files(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(seeds.ARTIFACTS / name).read_bytes() for name in names]


_NOISE: Callable[[], list[bytes]] = lambda: [bytes(range(start, start + 64)) for start in range(0, 192, 16)]  # noqa: E731

TARGETS = {
    "manifest": Target(_manifest, _files("mask/slimformer.json", "ternary/slimformer.json")),
    "signed-manifest": Target(_signed_manifest, _NOISE),
    "probe": Target(_probe, _NOISE, 1_000),
    "onnx-record": Target(_onnx_record, _NOISE, 300),
    "mask-file": Target(_mask_file, _files("mask/mask.safetensors"), 2_000),
    "signed-mask-file": Target(_signed_mask_file, _NOISE, 2_000),
    "gaps": Target(_gaps, _coded),
    "packed": Target(_packed, _NOISE, 100),
    "engine-file": Target(_engine_file, _files("rounded/model.safetensors")),
    "engine": Target(_engine, _NOISE, 1_000),
    "yaml": Target(_yaml, lambda: [seeds.YAML]),
    "csv": Target(_table("csv", "csv", "csv.gz"), lambda: _each(seeds.CSV, seeds.packed(seeds.CSV))()),
    "tsv": Target(_table("tsv", "tsv"), _each(seeds.TSV)),
    "mapping": Target(_mapping, lambda: [b"0\tsad\n1\tglad\tof emoji\n"]),
    "jsonl": Target(_table("jsonl", "jsonl"), lambda: [*_each(seeds.JSONL)(), *_each(seeds.JSON)()]),
    "conll": Target(_table("conll", "conll"), _each(seeds.CONLL)),
    "conllu": Target(_table("conllu", "conllu"), _each(seeds.CONLLU)),
    "squad": Target(_table("squad", "json"), _each(seeds.SQUAD)),
    "parquet": Target(_table("parquet", "parquet"), lambda: _each(seeds.parquet())(), 1_000),
    "image": Target(_image, lambda: [seeds.picture(kind) for kind in ("png", "jpeg", "bmp", "gif", "webp", "ppm")]),
    "zip": Target(_zip, lambda: [seeds.pictures()]),
    "corpus": Target(_corpus, lambda: _each(*[seeds.TEXT] * 4, *[seeds.JSONL] * 3, seeds.CSV, seeds.TSV)(), 1_000),
    "requests": Target(
        _requests, lambda: _each(seeds.TEXT, seeds.JSONL, seeds.CSV, seeds.TSV, seeds.packed(seeds.TEXT))()
    ),
}
