"""Code that a model brings along: never asked about on the terminal and never run, unless the caller says so.

Trust is a matter of the call and not of the model, so it is held here, in one context value, and not handed from
function to function: `--trust-remote-code` and every `trust_remote_code=True` enter `trusting`, and whatever calls
`from_pretrained` inside asks `trusted`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TRUSTED: ContextVar[bool] = ContextVar("slimformer_trusted", default=False)

#: Keys of a config that name what is computed by; with the name of a repository, Transformers fetches a compiled
#: kernel from there, which is code too.
KERNEL_KEYS = frozenset(
    {
        "_attn_implementation",
        "_experts_implementation",
        "attn_implementation",
        "experts_implementation",
        "kernel_config",
    }
)
#: Keys that make Transformers import code of a repository or fetch a kernel.
CODE_KEYS = KERNEL_KEYS | {"auto_map", "custom_pipelines"}


def trusted() -> bool:
    """Whether code of a model may run here."""
    return _TRUSTED.get()


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Let code of models run inside the `with` block; with False, leave it as it was outside.

    Example:
        >>> with trusting():
        ...     config = load_config("./model-with-code")
    """
    token = _TRUSTED.set(trusted() or trust)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def check_kernels(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config that fetches compiled kernels from a repository, for the whole model or for a part of it."""
    for key, value in config.items():
        if key in KERNEL_KEYS and "/" in str(value) and not trusted():
            raise CheckpointError(
                f"config.json of `{name}` asks to run code from elsewhere by `{key}`, which is not done unasked; "
                "remove the key, or give `--trust-remote-code` (trust_remote_code=True) if you trust it"
            )
        if isinstance(value, dict):
            check_kernels(value, name)


def code_refused(name: str, error: Exception) -> CheckpointError | None:
    """What to raise where Transformers could not go on without running code; None for any other error."""
    if "trust_remote_code" not in str(error):
        return None
    return needs_code(name)


def needs_code(name: str) -> CheckpointError:
    """The error of a model that only its own code can load."""
    return CheckpointError(
        f"`{name}` needs code of its own to be loaded (`auto_map` in its configs), which is not run unasked; read that "
        "code, and give `--trust-remote-code` (trust_remote_code=True) if you trust it"
    )
