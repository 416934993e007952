"""Teacher, student and corpus of a distillation, checked before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.corpus import ImageCorpus, open_corpus, open_images
from slimformer.errors import ConfigError
from slimformer.methods.base import read_base, refuse_mask
from slimformer.methods.distill.knowledge import (
    HiddenStates,
    MapsAndValues,
    Pooled,
    Relations,
    SoftLabels,
    projection_widths,
)
from slimformer.methods.distill.sentences import sentence_settings
from slimformer.methods.distill.shape import StudentShape
from slimformer.methods.distill.student import build_student, student_config
from slimformer.methods.distill.vocabulary import check_same_tokens
from slimformer.tasks.kinds import kind_of_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.corpus import Corpus, Stream
    from slimformer.methods.distill.config import DistillConfig
    from slimformer.methods.distill.knowledge import Knowledge
    from slimformer.models.sentence import SentenceSettings

#: Tokens of an example in the paper.
LENGTH = 512
#: Relation heads of the paper, for teachers below and from this width.
RELATION_HEADS, LARGE_RELATION_HEADS, LARGE = 48, 64, 1024


@dataclass(frozen=True)
class Setup:
    """The two models and what one learns from the other.

    Args:
        teacher: The teacher.
        processor: Its tokenizer or image processor, which becomes the student's.
        corpus: The text or images that both look at.
        knowledge: What is learned, each kind with its weight.
        length: Tokens of an example; None for images.
        config: The settings.
        sentence: How sentence embeddings come about, and what else of it the student keeps.
    """

    teacher: PreTrainedModel
    processor: Any
    corpus: Corpus | ImageCorpus
    knowledge: list[tuple[float, Knowledge]]
    length: int | None
    config: DistillConfig
    sentence: SentenceSettings

    @property
    def names(self) -> tuple[str, ...]:
        """What is looked at in both models."""
        return tuple(name for _, knowledge in self.knowledge for name in knowledge.names)

    def stream(self, seed: int | None = None, pack: bool = True, memo: Path | None = None) -> Stream:
        """The examples both models look at, in the order they do.

        Args:
            seed: Seed of the order; the run's own unless given.
            pack: Whether documents are put together to full length; a head that judges whole texts sees one each.
            memo: Where the stream notes how far it came.
        """
        seed = self.config.seed if seed is None else seed
        if isinstance(self.corpus, ImageCorpus):
            return self.corpus.stream(self.processor, seed=seed)
        assert self.length is not None
        return self.corpus.stream(
            self.processor,
            self.length,
            seed=seed,
            pack=pack and not self.judges_texts,
            buffer=self.config.buffer * 2**20,
            memo=memo,
        )

    @property
    def judges_texts(self) -> bool:
        """Whether the teacher's head says one thing of a whole text."""
        return "ForSequenceClassification" in type(self.teacher).__name__

    def new_student(self) -> PreTrainedModel:
        """The student as it starts; the same at every call."""
        exact = self.config.start == "random" or self.config.teacher_dtype == "float32"
        # What a student starts from is not what was rounded for the teacher's own work.
        return _new_student(self.config, self.teacher if exact else _load_teacher(self.config, self.teacher.config))


def set_up(config: DistillConfig) -> Setup:
    """Read and check both models, the cheap things first."""
    assert config.teacher is not None
    for name in filter(None, (config.teacher, config.student)):
        refuse_mask(name)
    teacher_config = read_base(config.teacher)
    student = read_base(config.student) if config.student else student_config(teacher_config, _shape(config))
    processor = models.load_processor(config.teacher)
    if config.student is not None and hasattr(processor, "get_vocab"):
        check_same_tokens(processor, models.load_processor(config.student))
    length = _length(config, teacher_config, student)
    teacher = _load_teacher(config, teacher_config)
    ours = Anatomy.of(_new_student(config, teacher))
    knowledge = _knowledge(config, Anatomy.of(teacher), ours)
    for _, each in knowledge:
        each.maps(Anatomy.of(teacher), ours)  # refuses what cannot be compared
    corpus = _corpus(config, length)
    cast("nn.Module", teacher).to(dtype=getattr(torch, config.teacher_dtype))
    return Setup(teacher, processor, corpus, knowledge, length, config, sentence_settings(config))


def _corpus(config: DistillConfig, length: int | None) -> Corpus | ImageCorpus:
    assert config.corpus is not None
    if length is not None:
        return open_corpus(config.corpus, text_column=config.text_column, documents=config.documents)
    if config.text_column is not None:
        raise ConfigError(f"`text_column` is `{config.text_column}`, and the teacher sees images; leave it out")
    return open_images(config.corpus)


def _shape(config: DistillConfig) -> StudentShape:
    return StudentShape.make({name: getattr(config, name) for name in StudentShape.model_fields})


def _load_teacher(config: DistillConfig, teacher: PretrainedConfig) -> PreTrainedModel:
    assert config.teacher is not None
    return models.load_model(config.teacher, _teacher_class(config, teacher), whole=True)


def _teacher_class(config: DistillConfig, teacher: PretrainedConfig) -> Any:
    import transformers

    if config.objective != "soft-labels":
        return transformers.AutoModel
    name = (teacher.architectures or [""])[0]
    if "For" not in name and "LMHead" not in name:
        raise ConfigError(
            f"`{config.teacher}` is a `{name or 'model'}` without a head, so it has no labels to learn; give a "
            "fine-tuned model or a language model, or learn `relations`"
        )
    kind = kind_of_model(name, teacher)
    if kind is not None and not kind.exclusive:
        raise ConfigError(
            f"`{config.teacher}` gives any number of labels to a text, and soft labels are for those that exclude each "
            "other; learn `relations`, and fine-tune the student"
        )
    return getattr(transformers, name)


def _length(config: DistillConfig, teacher: PretrainedConfig, student: PretrainedConfig) -> int | None:
    if hasattr(teacher, "patch_size"):
        if config.max_length is not None:
            raise ConfigError("`max_length` is for text, and the teacher sees images; leave it out")
        return None
    limits = [count for count in map(models.positions, (teacher, student)) if count is not None]
    most = min(limits, default=LENGTH)
    if config.max_length is not None and limits and config.max_length > most:
        raise ConfigError(
            f"`max_length` is {config.max_length}, and the models take {most} tokens; give {most} or less"
        )
    return config.max_length or min(LENGTH, most)


def _new_student(config: DistillConfig, teacher: PreTrainedModel) -> PreTrainedModel:
    import transformers

    if config.student is None:
        return build_student(teacher, _shape(config), config.seed)
    bare = Anatomy.of(teacher).base is teacher
    return models.load_model(config.student, transformers.AutoModel if bare else type(teacher))


def _knowledge(config: DistillConfig, teacher: Anatomy, student: Anatomy) -> list[tuple[float, Knowledge]]:
    causal = teacher.family.causal
    learned: Knowledge
    if config.objective == "relations":
        learned = Relations(
            config.relation_heads or usual_relation_heads(teacher, student),
            config.relations,
            config.relation_weights,
            causal,
        )
    elif config.objective == "minilm-v1":
        learned = MapsAndValues(teacher.blocks[-1].key_value_heads, causal)
    elif config.objective == "hidden-states":
        learned = HiddenStates()
    else:
        learned = SoftLabels(config.temperature)
    return [(1.0, learned), *([(config.pooled_weight, Pooled())] if config.pooled is not None else [])]


def usual_relation_heads(teacher: Anatomy, student: Anatomy) -> int:
    """The paper's number of relation heads, or the next smaller that divides all projections of both models."""
    most = RELATION_HEADS if teacher.hidden < LARGE else LARGE_RELATION_HEADS
    common = math.gcd(*(width for anatomy in (teacher, student) for width in projection_widths(anatomy).values()))
    return max(number for number in range(1, most + 1) if common % number == 0)
