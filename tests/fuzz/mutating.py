"""Changes that keep a value parseable, so that what comes behind the parser is reached as well."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atheris import FuzzedDataProvider

#: Values that code tends not to expect.
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 7, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400, 0.5, 1e308, -0.0),
    *("", " ", "a", "\0", "../x", "/etc/passwd", "\x1b[2J", "é" * 300, "0" * 64, "f" * 64, "int64", "nan"),
    *([], {}, [[]], [1, 2], {"a": 1}, [None], [-1, 2**40], {"": ""}),
)


def mutated(value: Any, provider: FuzzedDataProvider) -> Any:
    """A copy of a JSON value in which some parts are replaced, removed, doubled or renamed."""
    root = [copy.deepcopy(value)]
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        holder, key = _pick(root, provider)
        match provider.ConsumeIntInRange(0, 4):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[provider.ConsumeUnicodeNoSurrogates(6)] = holder.pop(key)
            case 2 if isinstance(holder, list) and holder is not root:
                holder.insert(key, copy.deepcopy(holder[key]))
            case 3:
                holder[key] = provider.ConsumeInt(5)
            case _:
                holder[key] = copy.deepcopy(ODD[provider.ConsumeIntInRange(0, len(ODD) - 1)])
    return root[0]


def _pick(root: list[Any], provider: FuzzedDataProvider) -> tuple[Any, Any]:
    """A place in a value: the list or mapping, and the index or key in it."""
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], (list, dict)) and len(holder[key]) and provider.ConsumeIntInRange(0, 5):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[provider.ConsumeIntInRange(0, len(keys) - 1)]
    return holder, key
