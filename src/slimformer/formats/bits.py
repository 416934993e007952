"""Bits of a mask as `slimformer.formats.gaps` writes them, read without torch."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from slimformer.errors import FormatError
from slimformer.formats.layout import BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ways in which bits are written, by their first byte.
PLAIN, ONES, ZEROS = 0, 1, 2
#: The byte that skips so many bits and stands for none.
SKIP = 255


def read_bits(coded: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """So many bits as bytes 0 and 1.

    No more memory is taken than they need, whatever the bytes say; the caller knows that there is a weight for each.

    Raises:
        FormatError: If the bytes are not those of so many bits.
    """
    check_bytes(coded, count)
    mode = int(coded[0])
    if mode == PLAIN:
        return np.unpackbits(coded[1:], count=count, bitorder="little")
    places = _places(_inflate(coded[1:].tobytes(), count), count)
    bits = np.full(count, mode == ZEROS, dtype=np.uint8)
    bits[places] = mode == ONES
    return bits


def check_bytes(coded: NDArray[np.uint8], count: int) -> None:
    """Refuse what cannot be the bytes of so many bits, as far as that shows without decoding them."""
    if coded.dtype != np.uint8 or coded.ndim != 1 or not coded.size:
        raise FormatError(f"{coded.dtype} of shape {list(coded.shape)} are no coded bits; give bytes")
    if count < 0:
        raise FormatError(f"there cannot be {count:,} bits; give 0 or more")
    mode, length = int(coded[0]), coded.size - 1
    if mode > ZEROS:
        raise FormatError(f"the bits are written in way {mode}, and this slimformer knows 0 to {ZEROS}; update it")
    if mode == PLAIN and length != BITS.bytes_for(count):
        raise FormatError(f"there are {length:,} bytes for {count:,} bits instead of {BITS.bytes_for(count):,}")


def _places(gaps: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    marks = gaps != SKIP
    # A skip moves on by 255, a gap by itself and the bit it ends at.
    places: NDArray[np.int64] = np.cumsum(gaps.astype(np.int64) + marks)[marks] - 1
    if (places.size and places[-1] >= count) or (gaps.size and gaps[-1] == SKIP):
        raise FormatError(f"the gaps lead beyond the last of {count:,} bits")
    return places


def _inflate(data: bytes, limit: int) -> NDArray[np.uint8]:
    """What a stream holds, which is to be no more than `limit` bytes: there is at most one for each bit."""
    reader = zlib.decompressobj()
    try:
        # A limit of 0 would mean none.
        content = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise FormatError(f"the gaps cannot be read: {error}") from error
    if len(content) > limit or not reader.eof or reader.unused_data:
        raise FormatError(f"the gaps are cut short, or more than there are bits, {limit:,}")
    return np.frombuffer(content, dtype=np.uint8)
