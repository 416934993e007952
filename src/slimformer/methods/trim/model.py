"""A model with some rows of its embedding only."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.errors import AnatomyError, ConfigError
from slimformer.methods.trim.pieces import choose_pieces, count_pieces, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

#: Lists of tokens in a generation config; a list that names a dropped token loses its meaning or that token.
_TOKEN_LISTS = ("suppress_tokens", "begin_suppress_tokens")
_SEQUENCE_LISTS = ("bad_words_ids",)


def model_pieces(model: nn.Module) -> set[int]:
    """Ids of the pieces that a model needs, whatever the corpus says.

    These are the tokens its configs name. Where positions are counted from the padding token's id on, as in RoBERTa
    and MPNet, they are also all pieces before it, so that this id stays.

    Args:
        model: A text model.
    """
    anatomy = Anatomy.of(model)
    rows = _rows(anatomy)
    named = {token_id for config in _configs(anatomy.model) for _, token_id in _named_tokens(config)}
    return {token_id for token_id in named if 0 <= token_id < rows} | set(range(_first_position(anatomy)))


def domain_pieces(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[str],
    *,
    keep: int | None,
    coverage: float | None,
    always: Iterable[str] = (),
) -> tuple[list[int], float]:
    """Ids of the pieces that a model keeps for some texts, rising, and the share of their tokens that these make up.

    Args:
        model: A text model.
        tokenizer: Its tokenizer, a fast one.
        documents: The texts.
        keep: How many pieces to keep at most; either this or `coverage`.
        coverage: The share of the texts' tokens to keep.
        always: Texts whose pieces stay besides.
    """
    counts = count_pieces(tokenizer, documents)
    needed = model_pieces(model) | pieces_of(tokenizer, always)
    ids = choose_pieces(tokenizer, counts, keep=keep, coverage=coverage, always=needed)
    inside = [piece_id for piece_id in ids if piece_id < len(counts)]
    return ids, float(counts[inside].sum() / counts.sum())


def trim_model(model: nn.Module, ids: Sequence[int]) -> nn.Module:
    """Keep these rows of the word embedding, in place, and of whatever else has one per piece: heads and their biases.

    Ties stay tied. The configs get the new size and the new ids of their special tokens. On texts of kept pieces
    the model computes the very same hidden states.

    Args:
        model: A text model without views on it.
        ids: The pieces that stay, rising; of `choose_pieces`.
    """
    anatomy = Anatomy.of(model)
    plain: Any = anatomy.model
    rows = _rows(anatomy)
    new_ids = {old: new for new, old in enumerate(ids)}
    _check_ids(anatomy, new_ids, rows)
    if len(new_ids) == rows:
        return model
    chosen = torch.as_tensor(list(ids))
    resize_vocabulary(plain, len(new_ids), lambda tensor, dim: _select(tensor, dim, chosen), new_ids)
    return model


def resize_vocabulary(
    model: nn.Module,
    size: int,
    resize: Callable[[Tensor, int], Tensor],
    new_ids: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Give a model another number of pieces, in place: whatever has a row per piece, ties, sizes and configs.

    What has a row per piece is found by building the model's class twice without memory, with different numbers of
    pieces, and looking at what differs.

    Args:
        model: A text model without views on it.
        size: How many pieces it has then; as many as before where rows get other values alone.
        resize: Makes of a tensor one with `size` rows along a dimension.
        new_ids: Old id → new id of the pieces that stay; an id that is not among them stays the same.
    """
    plain: Any = Anatomy.of(model).model
    config = copy.deepcopy(plain.config)
    before = _skeleton(plain, config)
    same = size == config.vocab_size
    _renumber(config, new_ids)
    config.vocab_size = size + same  # models of the same size would not differ
    after = _skeleton(plain, config)
    _resize_tensors(plain, before, after, resize)
    if same:
        return
    _copy_sizes(plain, before, after)
    for each in _configs(plain):
        _renumber(each, new_ids)
        if hasattr(each, "vocab_size"):
            each.vocab_size = size


def _rows(anatomy: Anatomy) -> int:
    embedding = anatomy.word_embedding
    if embedding is None:
        raise AnatomyError(
            f"a {type(anatomy.model).__name__} of family `{anatomy.family.name}` has no word embedding to trim; "
            "give a text model"
        )
    return embedding.shape[0]


def _first_position(anatomy: Anatomy) -> int:
    """The first position: 0, or the one after the padding token's id, as their table tells."""
    word = anatomy.word_embedding
    tables = [
        module
        for root in anatomy.embeddings
        for module in root.modules()
        if isinstance(module, nn.Embedding) and (word is None or module is not word.module)
    ]
    return max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)


def _configs(model: Any) -> list[Any]:
    """Every config that the model or a part of it holds, each once."""
    configs = {
        id(config): config for module in model.modules() if (config := getattr(module, "config", None)) is not None
    }
    generation = getattr(model, "generation_config", None)
    return [*configs.values(), *([] if generation is None else [generation])]


def _named_tokens(config: Any) -> Iterator[tuple[str, int]]:
    """Settings that name a token, and the token's id."""
    for name, value in vars(config).items():
        if name.endswith("_token_id"):
            for token_id in value if isinstance(value, list | tuple) else [value]:
                if isinstance(token_id, int):
                    yield name, token_id


def _check_ids(anatomy: Anatomy, new_ids: Mapping[int, int], rows: int) -> None:
    ids = list(new_ids)
    if not ids or ids != sorted(ids) or ids[0] < 0:
        raise ConfigError(f"pieces {str(ids[:3])[:60]} … do not rise from 0 on; take what `choose_pieces` returns")
    if ids[-1] >= rows:
        raise ConfigError(
            f"piece {ids[-1]} has no row in the embedding of {rows}; give the tokenizer that belongs to the model"
        )
    missing = sorted(model_pieces(anatomy.model) - set(ids))
    if missing:
        raise ConfigError(
            f"piece {missing[0]} is not among those kept, but the model needs it; "
            "give `model_pieces(model)` to `choose_pieces` as `always`"
        )


def _skeleton(model: nn.Module, config: Any) -> nn.Module:
    """A model of the same class on the meta device."""
    with torch.device("meta"):
        skeleton: nn.Module = type(model)(copy.deepcopy(config))
    return skeleton


def _resize_tensors(
    model: nn.Module, before: nn.Module, after: nn.Module, resize: Callable[[Tensor, int], Tensor]
) -> None:
    """Resize whatever has another shape in `after` than in `before`; a tensor that is shared stays shared."""
    old_shapes, new_shapes = _shapes(before), _shapes(after)
    resized: dict[int, Tensor] = {}
    for path, shape in old_shapes.items():
        dims = [dim for dim, (old, new) in enumerate(zip(shape, new_shapes[path], strict=True)) if old != new]
        if not dims:
            continue
        owner_path, _, name = path.rpartition(".")
        owner = model.get_submodule(owner_path)
        tensor = owner._parameters.get(name, owner._buffers.get(name))
        if tensor is None or tensor.shape != shape:
            raise AnatomyError(
                f"`{path}` is no plain weight of shape {list(shape)}; change a model's vocabulary before quantizing or "
                "masking it"
            )
        if id(tensor) not in resized:
            values = tensor.detach()
            for dim in dims:
                values = resize(values, dim).contiguous()
            parameter = isinstance(tensor, nn.Parameter)
            resized[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if parameter else values
        setattr(owner, name, resized[id(tensor)])


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """The shape of each parameter and buffer, under every name it has."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.shape for name, tensor in tensors}


def _select(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
    return tensor.index_select(dim, ids.to(tensor.device))


def _copy_sizes(model: nn.Module, before: nn.Module, after: nn.Module) -> None:
    """Set what modules note of their sizes, such as `num_embeddings` and `padding_idx`."""
    new = dict(after.named_modules())
    for path, module in before.named_modules():
        for name, value in vars(module).items():
            changed = vars(new[path]).get(name)
            if isinstance(value, int) and isinstance(changed, int) and changed != value:
                setattr(model.get_submodule(path), name, changed)


def _renumber(config: Any, new_ids: Mapping[int, int]) -> None:
    """Give a config the new ids of its tokens; an id that never was in the vocabulary stays."""
    for name in {name for name, _ in _named_tokens(config)}:
        value = getattr(config, name)
        several = isinstance(value, list | tuple)
        ids = [new_ids.get(token_id, token_id) for token_id in (value if several else [value])]
        setattr(config, name, ids if several else ids[0])
    for name in _TOKEN_LISTS:
        if getattr(config, name, None):
            setattr(config, name, [new_ids[token_id] for token_id in getattr(config, name) if token_id in new_ids])
    for name in _SEQUENCE_LISTS:
        if getattr(config, name, None):
            kept = [each for each in getattr(config, name) if all(token_id in new_ids for token_id in each)]
            setattr(config, name, [[new_ids[token_id] for token_id in each] for each in kept])
