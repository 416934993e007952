"""The engine's arithmetic on floats of 32 bits, one NumPy operation for each rounding.

Sums of floats go through 16 lanes side by side, number i in lane i % 16, and then through one tree over the lanes.
Multiplications and additions are fused where it says `fma`, and nowhere else.
"""

from __future__ import annotations

import numpy as np

LANES = 16
#: The largest code of an activation.
LARGEST = np.float32(127)


def fma(a, b, c):
    """a·b + c, rounded once to 32 bits.

    In 64 bits the product of two floats is exact. Their sum with `c` is rounded to odd there (the last bit says that
    something was cut off), after which rounding to 32 bits is right, as after no rounding at all: Boldo and Melquiond,
    Emulation of a FMA and Correctly Rounded Sums, 2008.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    added = np.asarray(c, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(product + added)
        part = total - product
        cut_off = (product - (total - part)) + (added - part)  # exact (Knuth, TAOCP volume 2, section 4.2.2)
        even = np.isfinite(cut_off) & (cut_off != 0) & (total.view(np.int64) % 2 == 0)
        odd = np.nextafter(total, np.where(cut_off > 0, np.inf, -np.inf))
        return np.where(even, odd, total).astype(np.float32)


def lane_sums(x):
    """Sums over the last axis in each lane, [..., 16]; what the last lanes lack is 0."""
    blocks = -(-x.shape[-1] // LANES)
    filled = np.zeros((*x.shape[:-1], blocks * LANES), np.float32)
    filled[..., : x.shape[-1]] = x
    sums = np.zeros((*x.shape[:-1], LANES), np.float32)
    for block in range(blocks):
        sums = sums + filled[..., block * LANES : (block + 1) * LANES]
    return sums


def tree(lanes):
    """The sum over 16 lanes: 8 sums of lanes 8 apart, 4 of those 4 apart, and so on."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def total(x):
    """The sum over the last axis."""
    return tree(lane_sums(x))


def polynomial(coefficients, x):
    """By Horner's rule, the highest power first."""
    y = np.full_like(x, np.float32(coefficients[0]))
    for each in coefficients[1:]:
        y = fma(y, x, np.float32(each))
    return y


def exponential(x):
    """e^x = 2^n e^r, for x up to 88; 0 below -87.3."""
    lowest = np.float32(-87.3)
    bounded = np.maximum(x, lowest)
    n = np.rint(bounded * np.float32(1.44269504))
    r = fma(n, np.float32(2.12194440e-4), fma(n, np.float32(-0.693359375), bounded))
    y = polynomial((1.3956052e-3, 8.3751287e-3, 4.1666083e-2, 1.6666415e-1, 0.5, 1, 1), r)
    return np.where(x < lowest, np.float32(0), y * np.ldexp(np.float32(1), n.astype(np.int32)))


INNER = (7.8891193e-5, -8.0208411e-4, 5.1895352e-3, -2.6854444e-2, 1.1283600e-1, -3.7612626e-1, 1.1283791)
OUTER = (
    *(1.5998190e-6, -4.5298089e-5, 5.9020316e-4, -4.7276882e-3, 2.6327522e-2),
    *(-1.0990973e-1, -6.3201344e-1, -1.1301197, 2.9102541e-4),
)


def error_function(x):
    """erf x: x P(x²) up to 1, above it 1 - e^Q(|x|), which is 1 from 4 on."""
    size = np.abs(x)
    inner = polynomial(INNER, x * x) * x
    outer = np.float32(1) - exponential(polynomial(OUTER, np.minimum(size, np.float32(4))))
    return np.where(size < 1, inner, np.copysign(outer, x))


def logistic(x):
    """1 / (1 + e^-x) where x is no less than 0, else e^x / (1 + e^x)."""
    e = exponential(-np.abs(x))
    return np.where(x < 0, e, np.float32(1)) / (np.float32(1) + e)


def gelu(x):
    """x (erf(x / √2) / 2 + 1 / 2)."""
    half = np.float32(0.5)
    return x * fma(error_function(x * np.float32(0.70710678)), half, half)


def gelu_tanh(x):
    """x logistic(√(8 / π) (x + 0.044715 x³))."""
    return x * logistic(np.float32(1.59576912) * fma(x * x * x, np.float32(0.044715), x))


def tanh(x):
    """(1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x."""
    e, one = exponential(np.float32(-2) * np.abs(x)), np.float32(1)
    return np.copysign((one - e) / (one + e), x)


ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "silu": lambda x: x * logistic(x),
    "tanh": tanh,
}


def rounded(x):
    """Codes of the last axis from -127 to 127, int64, and what a code of 1 stands for; 127 is the largest magnitude."""
    most = np.abs(x).max(axis=-1)
    counts = most > np.float32(1e-36)
    divisor, one = np.where(counts, most, np.float32(1)), np.float32(1)
    up = np.where(counts, one / divisor * LARGEST, one)
    down = np.where(counts, divisor / LARGEST, one)
    return np.rint(x * up[..., None]).astype(np.int64), down


def codes_product(x, codes, scales, group, bias):
    """x Wᵀ + b of [rows, inputs] floats, where W is codes times a scale for each output and group of inputs.

    Sums of codes are whole; of each group, one after the other, `sum · step · scale` is added to the bias.
    """
    whole, steps = rounded(x)
    y = np.tile(bias, (len(x), 1))
    for number, first in enumerate(range(0, codes.shape[1], group)):
        part = slice(first, first + group)
        sums = (whole[:, part] @ codes[:, part].T).astype(np.float32)
        y = fma(sums * steps[:, None], scales[:, number], y)
    return y


def chain(a, b):
    """a Bᵀ over the last axes, one fused multiply-add for each of the inputs in their order, from 0 on."""
    sums = np.zeros((*a.shape[:-1], b.shape[-2]), np.float32)
    for k in range(a.shape[-1]):
        sums = fma(a[..., k, None], b[..., None, :, k], sums)
    return sums


def norm(x, weight, bias, epsilon):
    """Of each row: its mean is taken off, then it is divided by its deviation and scaled."""
    width = np.float32(x.shape[-1])
    apart = x - (total(x) / width)[:, None]
    squares = np.zeros((len(x), LANES), np.float32)
    for first in range(0, x.shape[-1], LANES):
        part = apart[:, first : first + LANES]
        squares[:, : part.shape[1]] = fma(part, part, squares[:, : part.shape[1]])
    deviation = np.sqrt(tree(squares) / width + np.float32(epsilon))
    return fma(apart * (np.float32(1) / deviation)[:, None], weight, bias)


def attention(query, key, value, *, rounds, seen, bias=None):
    """Attention of [heads, tokens, width], all numbers of 32 bits; `seen` says which keys a query sees.

    Where operands are rounded, so are the values, and a probability becomes 127 where it is the largest of its query.
    """
    factor = np.float32(1) / np.sqrt(np.float32(query.shape[-1]))
    if rounds:
        (query, query_steps), (key, key_steps), (value, value_steps) = map(rounded, (query, key, value))
        scores = (query @ key.swapaxes(1, 2)).astype(np.float32) * (query_steps * factor)[..., None]
        scores = scores * key_steps[:, None, :]
        value = value.astype(np.float32) * value_steps[..., None]
    else:
        scores = chain(query, key) * factor
    scores = np.where(seen, scores if bias is None else scores + bias, np.float32(-np.inf))
    shares = exponential(scores - scores.max(axis=-1, keepdims=True))
    multiplier = np.float32(1) / total(shares)
    if rounds:
        shares, multiplier = np.rint(shares * LARGEST), multiplier / LARGEST
    return chain(shares, value.swapaxes(1, 2)) * multiplier[..., None]
