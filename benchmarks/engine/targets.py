"""What the engine set out to reach, and whether it did: computed from the numbers that were measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engine import products
from engine.peers import NATIVE, NATIVE_FLOAT, ORT_FLOAT, ORT_INT8, ORT_INT8_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VNNI, AVX2 = "avx512vnni", "avx2"


@dataclass(frozen=True)
class Target:
    """One target.

    Args:
        what: A ratio, larger is better.
        target: How large it should be.
        least: The smallest one measured.
        where: At which measurement that is.
        missed: All measurements below the target.
        met: Whether there are none.
    """

    what: str
    target: float
    least: float
    where: str
    missed: tuple[str, ...]
    met: bool


def targets(result: dict[str, Any], set_in_use: str, has_vnni: bool) -> list[dict[str, Any]]:
    """All targets for an instruction set that the measured parts decide."""
    return [asdict(each) for each in _all(result, set_in_use, has_vnni) if each is not None]


def _all(result: dict[str, Any], set_in_use: str, has_vnni: bool) -> Iterator[Target | None]:
    if set_in_use in (VNNI, AVX2):
        if "products" in result:
            yield from _of_products(result, set_in_use, has_vnni)
        if "encoders" in result:
            yield from _of_encoders(result["encoders"], set_in_use)
    if "starts" in result:
        for measure, goal in (("seconds to the first answer", 2.0), ("resident MB", 3.0)):
            ratios = {name: each[measure][ORT_INT8] / each[measure][NATIVE] for name, each in result["starts"].items()}
            yield _target(f"{measure}: {ORT_INT8} over {NATIVE}", goal, ratios)


def _of_products(result: dict[str, Any], set_in_use: str, has_vnni: bool) -> Iterator[Target | None]:
    measured, many = result["products"], ("16", "128", "1024")
    pairs = {"products": (products.NATIVE, products.ORT)}
    pairs["products with rounding"] = (products.ROUNDED, products.ORT_ROUNDED)
    for what, (native, peer) in pairs.items():
        label = f"{what}: operations a second over ONNX Runtime, int8"

        def over(rows: Iterable[str], native: str = native, peer: str = peer) -> dict[str, float]:
            return {
                f"{shape}, {row} rows": each[row][native] / each[row][peer]
                for shape, each in measured.items()
                for row in rows
                if native in each.get(row, {})
            }

        if set_in_use == VNNI:
            yield _target(f"{label}, 16 rows and more", 1.05, over(many))
            yield _target(f"{label}, one row", 1.8, over(["1"]))
        elif not has_vnni:
            yield _target(f"{label}, 16 rows and more", 1.15, over(many))
    peak = result["peaks"].get("maddubs")
    if set_in_use == AVX2 and peak:
        shares = {
            f"{shape}, {row} rows": each[row][products.NATIVE] / peak
            for shape, each in measured.items()
            for row in many
        }
        yield _target("products: share of the peak of `maddubs` and a sum, 16 rows and more", 0.75, shares)


def _of_encoders(measured: dict[str, Any], set_in_use: str) -> Iterator[Target | None]:
    cells = {f"{shape}, {batch}": cell["ms"] for shape, each in measured.items() for batch, cell in each.items()}
    even = {name: ms for name, ms in cells.items() if " texts of " not in name}
    ragged = {name: ms for name, ms in cells.items() if name not in even}

    def over(which: dict[str, dict[str, float]], peers: Iterable[str]) -> dict[str, float]:
        return {name: min(ms[peer] for peer in peers) / ms[NATIVE] for name, ms in which.items()}

    int8 = (ORT_INT8, ORT_INT8_BLOCKS)
    goal = 2.0 if set_in_use == VNNI else 1.4
    yield _target(f"encoders: {NATIVE} over the faster int8 of ONNX Runtime", goal, over(even, int8))
    if set_in_use == VNNI:
        others = {name: min(ms[peer] for peer in ms if not _is_ours(peer)) / ms[NATIVE] for name, ms in even.items()}
        yield _target(f"encoders: {NATIVE} over the fastest of all others", 1.5, others)
    if ragged:
        yield _target(f"ragged texts: {NATIVE} over the faster int8 of ONNX Runtime", 2.5, over(ragged, int8))
    floats = {name: ms[ORT_FLOAT] / ms[NATIVE_FLOAT] for name, ms in cells.items()}
    yield _target(f"encoders: {NATIVE_FLOAT} over {ORT_FLOAT}", 1.0, floats)


def _is_ours(peer: str) -> bool:
    return peer.startswith("slimformer")


def _target(what: str, goal: float, ratios: dict[str, float]) -> Target | None:
    if not ratios:
        return None
    where = min(ratios, key=lambda name: ratios[name])
    missed = tuple(f"{name}: {ratio:.2f}" for name, ratio in ratios.items() if ratio < goal)
    return Target(what, goal, round(ratios[where], 3), where, missed, not missed)
