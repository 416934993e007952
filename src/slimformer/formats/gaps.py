"""Bits of a mask in few bytes: the gaps between the rarer ones, entropy coded.

Where the share p of the bits is 1, no code takes fewer than H(p) bits each, 0.286 for p = 0.05. The gaps between
neighbouring ones are geometric, so a Huffman code of them comes within 1 % of that; looking for repetitions as well
(all of zlib, LZMA) finds none in a trained mask and takes more room and time, and an arithmetic coder gains the last
percent at a hundred times the cost in Python (`benchmarks/mask_file.py`).

The first byte says how the others are to be read:

- 0: the bits themselves, eight to a byte, the first in the lowest place;
- 1: a zlib stream of gaps between ones;
- 2: a zlib stream of gaps between zeros.

A gap is the number of bits that are skipped before the next one; 255 skips 255 bits and goes on with the next byte.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slimformer.errors import FormatError
from slimformer.formats.bits import ONES, PLAIN, SKIP, ZEROS, check_bytes, read_bits
from slimformer.formats.layout import BITS
from slimformer.formats.packing import pack

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode(flags: Tensor) -> Tensor:
    """Booleans, in their own order, as bytes: whichever way of writing them is the shortest."""
    flat = flags.detach().reshape(-1).bool().cpu()
    ones = int(flat.sum())
    rarer = ONES if 2 * ones <= flat.numel() else ZEROS
    stream = _deflate(_gaps((flat if rarer == ONES else ~flat).numpy()))
    return _bytes(rarer, stream) if len(stream) < BITS.bytes_for(flat.numel()) else plain(flat)


def plain(flags: Tensor) -> Tensor:
    """Booleans as bytes eight to a byte, which are the quickest to read."""
    packed = pack(flags.detach().reshape(-1).cpu(), BITS)
    return torch.cat([packed.new_tensor([PLAIN]), packed])


def decode(coded: Tensor, count: int) -> Tensor:
    """So many bits as bytes 0 and 1.

    No more memory is taken than they need, whatever the bytes say; the caller knows that there is a weight for each.

    Raises:
        FormatError: If the bytes are not those of so many bits.
    """
    check(coded, count)
    return torch.from_numpy(read_bits(coded.numpy(), count))


def check(coded: Tensor, count: int) -> None:
    """Refuse what cannot be the bytes of so many bits, as far as that shows without decoding them."""
    if coded.dtype != torch.uint8 or coded.dim() != 1 or not coded.numel():
        raise FormatError(f"{coded.dtype} of shape {list(coded.shape)} are no coded bits; give bytes")
    check_bytes(coded.numpy(), count)


def _gaps(flags: NDArray[np.bool_]) -> bytes:
    gaps = np.diff(np.flatnonzero(flags), prepend=-1) - 1
    lengths = gaps // SKIP + 1
    written = np.full(int(lengths.sum()), SKIP, dtype=np.uint8)
    written[np.cumsum(lengths) - 1] = gaps % SKIP
    return written.tobytes()


def _deflate(data: bytes) -> bytes:
    writer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return writer.compress(data) + writer.flush()


def _bytes(mode: int, stream: bytes) -> Tensor:
    return torch.frombuffer(bytearray([mode]) + stream, dtype=torch.uint8)
