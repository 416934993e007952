"""Models of any shape with new weights, from a family, a config or a model of another size, and their tokenizers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pydantic import Field

from slimformer.anatomy import family_of
from slimformer.anatomy.family import known
from slimformer.config import Config
from slimformer.errors import ConfigError
from slimformer.files import as_path
from slimformer.models.names import first_sentence, load_config, load_config_file
from slimformer.models.settings import MAX_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

#: No model is opened that has more blocks, and none is wider; a slip of the hand would fill the memory.
MOST_BLOCKS, MOST_WIDTH = MAX_PARTS, 2**20
#: What training keeps of each weight: itself, its gradient and Adam's two moments.
TRAINED_COPIES = 4
#: Special tokens of decoders and of encoders, by the names Transformers gives them.
DECODER = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
ENCODER = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
#: All bytes, so that every text can be written, and the special tokens: no vocabulary is smaller.
LEAST_TOKENS = 256 + len(ENCODER)


class Shape(Config):
    """How large a model is; what is not given stays as it is in the model or config that it is like."""

    layers: int | None = Field(None, ge=1, le=MOST_BLOCKS, description="Transformer blocks.")
    hidden: int | None = Field(None, ge=1, le=MOST_WIDTH, description="Width of the hidden states.")
    heads: int | None = Field(None, ge=1, le=MOST_WIDTH, description="Attention heads of a block.")
    ffn: int | None = Field(
        None, ge=1, le=MOST_WIDTH, description="Feed-forward neurons of a block; by default in proportion."
    )


def shape_of(model: nn.Module) -> dict[str, int]:
    """The sizes that a model has, by the names of `Shape`."""
    from slimformer.anatomy import Anatomy

    anatomy = Anatomy.of(model)
    block = anatomy.blocks[0]
    return {
        "layers": len(anatomy.blocks),
        "hidden": anatomy.hidden,
        "heads": block.heads,
        "ffn": block.ffn_width,
    }


def resize(config: PretrainedConfig, shape: Shape) -> PretrainedConfig:
    """A config of the same family with other sizes."""
    family = family_of(config.model_type)
    hidden, heads = shape.hidden or config.hidden_size, shape.heads or config.num_attention_heads
    if hidden % heads:
        fitting = ", ".join(str(number) for number in range(1, hidden + 1) if hidden % number == 0)
        raise ConfigError(f"`heads` is {heads}, which does not divide `hidden` {hidden}; choose from {fitting}")
    layers = shape.layers or config.num_hidden_layers
    old_ffn = getattr(config, family.ffn_size) or 4 * config.hidden_size
    resized = copy.deepcopy(config)
    grouped = getattr(config, "num_key_value_heads", None)
    if grouped is not None:
        resized.num_key_value_heads = max(1, heads * grouped // config.num_attention_heads)
    if getattr(config, "head_dim", None) is not None:
        # In some families heads are wider or narrower than an even share of the hidden states; that stays.
        resized.head_dim = config.head_dim * hidden * config.num_attention_heads // (heads * config.hidden_size)
    if isinstance(getattr(config, "layer_types", None), list):
        resized.layer_types = [config.layer_types[index % len(config.layer_types)] for index in range(layers)]
    if getattr(config, "pooler_hidden_size", None) == config.hidden_size:
        resized.pooler_hidden_size = hidden
    resized.hidden_size, resized.num_attention_heads, resized.num_hidden_layers = hidden, heads, layers
    setattr(resized, family.ffn_size, shape.ffn or max(1, old_ffn * hidden // config.hidden_size))
    resized.architectures = None
    if hasattr(resized, "quantization_config"):
        del resized.quantization_config  # it tells how weights are stored that the new model does not have
    return resized


def build(model: Callable[[], PreTrainedModel], seed: int, what: str = "model") -> PreTrainedModel:
    """Build a model with random weights; one that cannot be, or that this machine has no memory for, is refused.

    Args:
        model: What makes it.
        seed: Seed of the random weights.
        what: What errors call it.
    """
    import torch
    from transformers import set_seed

    try:
        with torch.device("meta"):
            skeleton = model()
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise ConfigError(
            f"a {what} of this shape cannot be built: {first_sentence(error)}; choose other sizes"
        ) from error
    check_memory(skeleton, what)
    set_seed(seed)
    return model()


def check_memory(skeleton: nn.Module, what: str = "model") -> None:
    """Refuse a model that this machine has no memory for; where an accelerator trains it, its weights have to fit.

    Args:
        skeleton: The model on the meta device.
        what: What the error calls it.
    """
    import psutil
    import torch

    weights = sum(each.numel() * each.element_size() for each in skeleton.parameters())
    needed = weights if torch.accelerator.is_available() else weights * TRAINED_COPIES
    total = psutil.virtual_memory().total
    if needed > total:
        raise ConfigError(
            f"the {what} has {sum(each.numel() for each in skeleton.parameters()):,} parameters and takes about "
            f"{needed / 2**30:,.1f} GiB, and this machine has {total / 2**30:,.1f} GiB of memory; give a smaller "
            "`hidden`, `layers` or `ffn`"
        )


def open_config(name: str) -> PretrainedConfig:
    """The config that new weights are made for.

    Args:
        name: A family such as `llama`, in the size it has in Transformers; a JSON file with a config; or whatever a
            model may be called.
    """
    from transformers import AutoConfig

    if name in known():
        return AutoConfig.for_model(name)
    path = as_path(name)
    config = load_config_file(path) if path.is_file() else load_config(name)
    family_of(config.model_type)  # one that is not known is refused
    return config


def name_tokens(config: PretrainedConfig, tokenizer: Any) -> None:
    """Tell a config of a tokenizer: how many tokens it has, and which of them are special."""
    config.vocab_size = len(tokenizer)
    for token in ("bos", "eos", "pad", "cls", "sep", "mask"):
        name = f"{token}_token_id"
        if hasattr(config, name):
            setattr(config, name, getattr(tokenizer, name))


def train_tokenizer(texts: Iterable[str], vocabulary: int, *, causal: bool, max_length: int | None = None) -> Any:
    """Learn a byte-level BPE tokenizer, the same one for the same texts.

    Args:
        texts: What to learn the pieces from.
        vocabulary: Tokens it may have; few texts give fewer.
        causal: Whether it is for a decoder, whose texts end with a token, or for an encoder, which puts tokens around
            them and knows a mask.
        max_length: Tokens the model takes.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    names = DECODER if causal else ENCODER
    special = list(dict.fromkeys(names.values()))
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if not causal:
        opening, closing = names["cls_token"], names["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A {closing}",
            pair=f"{opening} $A {closing} $B:1 {closing}:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (opening, closing)],
        )
    limit = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **limit)
