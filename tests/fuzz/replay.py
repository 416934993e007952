"""`python -m tests.fuzz.replay TARGET FOLDER COUNT SEED`: inputs of a folder as they are, then with random changes.

For an extension that was built with sanitizers: with their library loaded first, libFuzzer sees no coverage and would
try little but noise. The folder is one that `make fuzz` has filled.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS


def changed(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Some bytes replaced, removed, doubled or taken from another input."""
    result = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(result) + 1)
        stop = min(len(result), start + draw.choice((1, 1, 2, 4, 8, 64)))
        match draw.randrange(5):
            case 0:
                result[start:stop] = draw.randbytes(stop - start)
            case 1:
                del result[start:stop]
            case 2:
                result[start:start] = result[start:stop]
            case 3:
                result[start:] = other[start:]
            case _ if start < len(result):
                result[start] ^= 1 << draw.randrange(8)
    return bytes(result)


def main() -> None:
    """Try so many inputs; a sanitizer or an exception that is no `SlimformerError` ends it."""
    name, folder, count, seed = sys.argv[1:]
    function = TARGETS[name].function()
    inputs = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    draw = random.Random(int(seed))
    for data in inputs:
        function(data)
    for _ in range(int(count)):
        function(changed(draw.choice(inputs), draw.choice(inputs), draw))
    sys.stdout.write(f"{len(inputs)} inputs of {folder} and {count} changed ones\n")


if __name__ == "__main__":
    main()
