"""ONNX Runtime: a file that is opened once and shared by threads, arrays in and arrays out."""

from __future__ import annotations

import mmap
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slimformer.errors import ArtifactError, ConfigError, DataError
from slimformer.files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Array: TypeAlias = np.ndarray[Any, Any]

#: Devices, as PyTorch calls them, and what of ONNX Runtime computes there.
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: Types of inputs that texts and images become.
_TYPES: dict[str, type[np.generic]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
}
#: How the names begin of operators that have one activation scale for a whole batch.
_SHARED_SCALE = b"DynamicQuantize"
#: What ONNX Runtime puts before each message.
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def check_extra(packages: Iterable[str], what: str, extra: str = "onnx") -> None:
    """Refuse work for which a package of an extra is missing; `what` is what needs it."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"{what} needs the package `{package}`, which is not installed; run: pip install 'slimformer[{extra}]'"
            ) from error


class OnnxSession:
    """An ONNX file in memory. Any number of threads may run it at once.

    Args:
        path: The file; weights of a large one lie in a second file beside it.
        threads: Threads of one run; None for what ONNX Runtime chooses.
        device: Where to run, such as `cuda`; the CPU when not given.

    Raises:
        ConfigError: Where the extra `onnx` is not installed, or computes on no such device here.
        ArtifactError: Where ONNX Runtime does not open the file.
    """

    def __init__(self, path: Path, threads: int | None = None, device: str | None = None) -> None:
        check_extra(["onnxruntime"], f"`{path}`")
        import onnxruntime

        self.path = path
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        settings.intra_op_num_threads = threads or 0
        provider = _provider(device)
        try:
            self.shares_scale = _contains(path, _SHARED_SCALE)
            session = onnxruntime.InferenceSession(path, settings, providers=[provider])
        except Exception as error:
            raise ArtifactError(
                f"onnxruntime {onnxruntime.__version__} does not open `{path}`: {_reason(error, path)}; give an ONNX "
                "file, or copy it again with the data beside it"
            ) from error
        self._session: Any = session
        self.inputs = {each.name: tuple(each.shape) for each in session.get_inputs()}
        self.outputs = tuple(each.name for each in session.get_outputs())
        self.metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
        self._types = {each.name: _TYPES.get(each.type) for each in session.get_inputs()}

    @property
    def one_at_a_time(self) -> bool:
        """Whether items that are run together would change each other's answers, or cannot be run together."""
        first = next(iter(self.inputs.values()), ())
        return self.shares_scale or (bool(first) and first[0] == 1)

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run a batch; what the file does not take is left out, and types of tokens are 0 where none are given."""
        feed = {name: self._input(name, arrays) for name in self.inputs}
        try:
            outputs = self._session.run(list(self.outputs), feed)
        except Exception as error:
            raise DataError(
                f"`{self.path}` does not run on a batch of shape "
                f"`{[list(array.shape) for array in feed.values()][:1]}`: {_reason(error, self.path)}; give shorter or "
                "fewer texts, or export the model again"
            ) from error
        return dict(zip(self.outputs, outputs, strict=True))

    def _input(self, name: str, arrays: Mapping[str, Array]) -> Array:
        kind = self._types[name]
        if kind is None or (name not in arrays and name != "token_type_ids"):
            seen = ", ".join(f"`{each}`" for each in arrays)
            raise ArtifactError(f"`{self.path}` takes `{name}`, and there are {seen} to give it; export the model anew")
        if name not in arrays:
            return np.zeros(next(iter(arrays.values())).shape, kind)
        return np.ascontiguousarray(arrays[name], kind)


def _provider(device: str | None) -> str:
    import onnxruntime

    name = PROVIDERS.get((device or "cpu").partition(":")[0])
    if name is None or name not in onnxruntime.get_available_providers():
        usable = [each for each, provider in PROVIDERS.items() if provider in onnxruntime.get_available_providers()]
        raise ConfigError(f"`--device` is `{device}`, where onnxruntime does not compute; give {' or '.join(usable)}")
    return name


def _contains(path: Path, text: bytes) -> bool:
    """Whether a file has some bytes in it: names of operators stand in ONNX files as they are."""
    with open_file(path) as file:
        if file.seek(0, 2) == 0:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0


def _reason(error: Exception, path: Path) -> str:
    """What went wrong, in one line without the path, which the message names already."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    line = _PREFIX.sub("", str(error).strip().splitlines()[0])
    reason = line.replace(f"Load model from {path} failed:", "").rstrip(".")
    return f"{reason[:1].lower()}{reason[1:]}"
