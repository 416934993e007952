"""Teacher, student and corpus of a distillation, checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.corpus import ImageCorpus, open_corpus, open_images
from slimformer.errors import ConfigError
from slimformer.inference.door import look_up
from slimformer.methods.distill.config import StudentShape
from slimformer.methods.distill.student import build_student, student_config
from slimformer.models.building import shape_of
from slimformer.models.sentence import SentenceSettings
from slimformer.objectives import Models, build_terms
from slimformer.objectives.terms.relations import Relations
from slimformer.objectives.terms.term import CLEAN, MASKED
from slimformer.registry import TERMS

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.corpus import Corpus, Stream
    from slimformer.inference.door import Source
    from slimformer.methods.distill.config import DistillConfig
    from slimformer.objectives import Weighted


def sentence_settings(config: DistillConfig) -> SentenceSettings:
    """How teacher and student pool: as told, or as is recorded with the teacher; the rest is always the teacher's."""
    assert config.teacher is not None
    pooled = next((term for term in config.learned if term.name == "pooled"), None)
    if pooled is None:
        return SentenceSettings()
    recorded = SentenceSettings.of(config.teacher) or SentenceSettings()
    pooling = str(pooled.values[0] if pooled.values else pooled.options.get("pooling", ""))
    return replace(recorded, pooling=tuple(pooling.split("+"))) if pooling else recorded


#: Tokens of an example in the paper.
LENGTH = 512
#: Attention heads of every student in the paper (arXiv 2012.15828, section 4.1), and the least width of one by default.
HEADS, HEAD_WIDTH = 12, 16
#: Tokens that mean something to a model, by the names tokenizers give them.
SPECIAL = ("cls_token", "sep_token", "pad_token", "bos_token", "eos_token", "unk_token", "mask_token")


@dataclass(frozen=True)
class Setup:
    """The two models and what one learns from the other.

    Args:
        teacher: The teacher.
        processor: Its tokenizer or image processor, which becomes the student's.
        corpus: The text or images that both look at.
        length: Tokens of an example; None for images.
        config: The settings.
        sentence: How sentence embeddings come about, and what else of it the student keeps.
        resolved: Settings that both models decide where they are left open.
    """

    teacher: PreTrainedModel
    processor: Any
    corpus: Corpus | ImageCorpus
    length: int | None
    config: DistillConfig
    sentence: SentenceSettings
    resolved: dict[str, Any] = field(default_factory=dict)

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
    sources = [look_up(name) for name in (config.teacher, config.student) if name is not None]
    sources[0].require(("plain", "packed"))  # a teacher is not trained
    for source in sources[1:]:
        source.require(("plain",))
        check_same_inputs(sources[0], source)
    teacher_config = sources[0].config
    student = (
        sources[1].config if config.student else student_config(teacher_config, student_shape(config, teacher_config))
    )
    processor = models.load_processor(config.teacher)
    if config.student is not None and hasattr(processor, "get_vocab"):
        check_same_tokens(processor, models.load_processor(config.student))
    length = _length(config, teacher_config, student)
    teacher = _load_teacher(config, teacher_config)
    student_anatomy = Anatomy.of(_new_student(config, teacher))
    sentence = sentence_settings(config)
    terms = make_terms(config, Anatomy.of(teacher), student_anatomy, sentence)  # refuses what cannot be compared
    for each in terms:
        each.term.maps()
    masked = wants_masks(terms)
    if masked and getattr(processor, "mask_token_id", None) is None:
        raise ConfigError(
            f"the tokenizer of `{config.teacher}` has no mask token to learn under; leave out `{masked[0]}`"
        )
    corpus = _corpus(config, length)
    cast("nn.Module", teacher).to(dtype=getattr(torch, config.teacher_dtype))
    resolved = {
        "max_length": length,
        "relation_heads": next((each.term.heads for each in terms if isinstance(each.term, Relations)), None),
        **(shape_of(student_anatomy.model) if config.student is None else {}),
    }
    return Setup(teacher, processor, corpus, length, config, sentence, resolved)


def make_terms(
    config: DistillConfig, teacher: Anatomy, student: Anatomy, sentence: SentenceSettings, layer: int = -1
) -> list[Weighted]:
    """What the student learns from a block of the teacher and from the rest of it."""
    blocks = ((len(student.blocks) - 1, layer % len(teacher.blocks)),)
    defaults: dict[str, dict[str, Any]] = {
        "relations": {
            "heads": config.relation_heads,
            "pairs": config.relations,
            "weights": config.relation_weights,
        },
        "logits": {"temperature": config.temperature},
        "pooled": {"pooling": "+".join(sentence.pooling)},
    }
    return build_terms(config.learned, Models(student, teacher, blocks), defaults, variants=(CLEAN, MASKED))


def wants_masks(terms: list[Weighted]) -> list[str]:
    """The terms that look at masked inputs."""
    return [each.label for each in terms if each.term.variant == MASKED]


def _corpus(config: DistillConfig, length: int | None) -> Corpus | ImageCorpus:
    assert config.corpus is not None
    if length is not None:
        return open_corpus(config.corpus, text_column=config.text_column, documents=config.documents)
    if config.text_column is not None:
        raise ConfigError(f"`text_column` is `{config.text_column}`, and the teacher sees images; leave it out")
    return open_images(config.corpus)


def student_shape(config: DistillConfig, teacher: PretrainedConfig) -> StudentShape:
    """How large the student is, with as many heads as the paper's students where nothing speaks for the teacher's."""
    shape = StudentShape.make({name: getattr(config, name) for name in StudentShape.model_fields})
    head_by_head = any(TERMS.get(term.name).head_by_head for term in config.learned)
    if shape.heads is not None or shape.start != "random" or head_by_head or not _twelve_fit(shape, teacher):
        return shape
    return shape.model_copy(update={"heads": HEADS})


def _twelve_fit(shape: StudentShape, teacher: PretrainedConfig) -> bool:
    hidden, heads = shape.hidden or teacher.hidden_size, teacher.num_attention_heads
    grouped = getattr(teacher, "num_key_value_heads", None) or heads
    divides = hidden % (2 * HEADS) == 0  # rotary positions turn the dimensions of a head in pairs
    return hidden != teacher.hidden_size and divides and hidden >= HEADS * HEAD_WIDTH and HEADS * grouped % heads == 0


def _load_teacher(config: DistillConfig, teacher: PretrainedConfig) -> PreTrainedModel:
    assert config.teacher is not None
    return models.load_model(config.teacher, _teacher_class(config, teacher), whole=True)


def _teacher_class(config: DistillConfig, teacher: PretrainedConfig) -> Any:
    import transformers

    if not any(TERMS.get(term.name).headed for term in config.learned):
        return transformers.AutoModel
    name = (teacher.architectures or [""])[0]
    if "For" not in name and "LMHead" not in name:
        raise ConfigError(
            f"`{config.teacher}` is a `{name or 'model'}` without a head, so it has no labels to learn; give a "
            "fine-tuned model or a language model, or learn `relations`"
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
        return build_student(teacher, student_shape(config, teacher.config), config.seed)
    if Anatomy.of(teacher).base is not teacher:
        return models.load_model(config.student, type(teacher))
    own = look_up(config.student).architecture
    # A student that has the head of a language model keeps it where language modelling goes on.
    goes_on = any(term.name in ("mlm", "clm") for term in config.learned)
    keeps = goes_on and own.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel"))
    return models.load_model(config.student, getattr(transformers, own) if keeps else transformers.AutoModel)


def check_same_inputs(teacher: Source, student: Source) -> None:
    """Refuse a student of images for a teacher of texts, and the reverse."""
    seen, learned = ("images" if models.sees_images(each.config) else "text" for each in (teacher, student))
    if seen != learned:
        raise ConfigError(
            f"`--student` is `{student.name}`, which takes {learned}, and the teacher takes {seen}; give a student of "
            "the same inputs"
        )


def check_same_tokens(teacher: Any, student: Any) -> None:
    """Refuse tokenizers that differ in any token; sizes alone say nothing.

    Args:
        teacher: The teacher's tokenizer.
        student: The student's.
    """
    expected, actual = teacher.get_vocab(), student.get_vocab()
    differing = sorted(number for token, number in expected.items() if actual.get(token) != number)
    missing = sorted(number for token, number in actual.items() if token not in expected)
    if differing or missing:
        number = (differing or missing)[0]
        by_number = [{number: token for token, number in vocabulary.items()} for vocabulary in (expected, actual)]
        said, heard = (f"`{names[number]}`" if number in names else "nothing" for names in by_number)
        raise ConfigError(
            f"teacher and student have different vocabularies: token {number} is {said} to the teacher and {heard} to "
            f"the student ({len(differing) + len(missing)} differ); take a student with the teacher's tokenizer"
        )
    for name in SPECIAL:
        one, other = getattr(teacher, name, None), getattr(student, name, None)
        if one != other:
            raise ConfigError(
                f"teacher and student have different special tokens: `{name}` is `{one}` to the teacher and `{other}` "
                "to the student; take a student with the teacher's tokenizer"
            )
