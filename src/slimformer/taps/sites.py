"""Where in a block each record comes from."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slimformer.anatomy import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from slimformer.anatomy import Anatomy, Block

Side = Literal["input", "output", "call"]


class Site(NamedTuple):
    """A module and which side of it gives a record: its input, its output, or all it was called with."""

    name: str
    module: nn.Module
    side: Side


def find_sites(anatomy: Anatomy, block: Block, record: frozenset[str]) -> list[Site]:
    """Where to hook a block for the records asked for."""
    wanted = set(record)
    sites: list[Site] = []
    if wanted & {"scores", "map"}:
        sites.append(Site("call", block.attention, "call"))
        wanted |= {"q", "k"}
    if "attention_output" in wanted:
        if block.parallel:
            sites.append(Site("input", block.module, "input"))
            wanted |= {"mha"}
        elif block.family.pre_norm:
            sites.append(Site("attention_output", block.ffn_norm, "input"))
        else:
            sites.append(Site("attention_output", block.attention_norm, "output"))
    if "context" in wanted:
        sites.append(Site("context", block.output.module, "input"))
    if "output" in wanted:
        sites.append(Site("output", _last_module(anatomy, block), "output"))
    modules = {
        "q": block.query.module,
        "k": block.key.module,
        "v": block.value.module,
        "mha": block.output.module,
        "ffn": block.down.module,
    }
    sites.extend(Site(name, module, "output") for name, module in modules.items() if name in wanted)
    return sites


def _last_module(anatomy: Anatomy, block: Block) -> nn.Module:
    path = anatomy.family.first_block_output
    if block.index == 0 and path is not None:
        return find(anatomy.base, path) or block.module
    return block.module


def hidden_input(args: Any, kwargs: Any) -> Any:
    """The hidden states a module was called with."""
    return args[0] if args else kwargs["hidden_states"]


def call_arguments(block: Block, module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """All that a block's attention was called with, by name, and how much its cache held before."""
    bound = _signature(type(module).forward).bind_partial(module, *args, **kwargs).arguments
    call = {**bound, **bound.get("kwargs", {})}
    past = call.get("past_key_values", call.get("layer_past"))
    # The cache grows as the forward goes on, so its length is read before the block adds to it.
    call["past_length"] = 0 if past is None else past.get_seq_length(block.index)
    return call


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)
