"""Teacher, student and corpus of a distillation, checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.corpus import ImageCorpus, open_images
from slimformer.corpus.options import MIXTURE_SETTINGS, TOKEN_SETTINGS
from slimformer.errors import ConfigError
from slimformer.inference.door import look_up
from slimformer.methods.corpus import check_same_tokens, example_length
from slimformer.methods.distill.config import PRESETS, StudentShape
from slimformer.methods.distill.shaping import HEAD_WIDTH, HEADS, choose_shape, common_heads
from slimformer.methods.distill.student import build_student, student_config
from slimformer.methods.distill.vocabulary import trim_teacher
from slimformer.methods.trim import trim_model
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
    from slimformer.corpus.tokens.building import Progress
    from slimformer.inference.source import Source
    from slimformer.methods.distill.config import DistillConfig
    from slimformer.methods.distill.shaping import Proposal
    from slimformer.methods.distill.vocabulary import Trimming
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


#: Tokens of the text whose time is taken, unless `max_length` says otherwise.
TIMED = 128


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
        shape: How large the student is; None for a checkpoint that has a shape of its own.
        proposal: That shape and what it costs, where a budget was given.
        trimming: What became of the vocabulary, where it was trimmed.
        resolved: Settings that both models decide where they are left open.
    """

    teacher: PreTrainedModel
    processor: Any
    corpus: Corpus | ImageCorpus
    length: int | None
    config: DistillConfig
    sentence: SentenceSettings
    shape: StudentShape | None
    proposal: Proposal | None = None
    trimming: Trimming | None = None
    resolved: dict[str, Any] = field(default_factory=dict)

    def stream(
        self, seed: int | None = None, pack: bool = True, memo: Path | None = None, progress: Progress | None = None
    ) -> Stream:
        """The examples both models look at, in the order they do.

        Args:
            seed: Seed of the order; the run's own unless given.
            pack: Whether documents are put together to full length; a head that judges whole texts sees one each.
            memo: Where the stream notes how far it came.
            progress: Told how far the making of tokens is, where they are kept.
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
            **self.config.token_settings(self.corpus, progress),
        )

    @property
    def judges_texts(self) -> bool:
        """Whether the teacher's head says one thing of a whole text."""
        return "ForSequenceClassification" in type(self.teacher).__name__

    def new_student(self) -> PreTrainedModel:
        """The student as it starts; the same at every call."""
        exact = self.config.start == "random" or self.config.teacher_dtype == "float32"
        if exact:
            return _new_student(self.config, self.teacher, self.shape)
        # What a student starts from is not what was rounded for the teacher's own work.
        teacher = _load_teacher(self.config, look_up(cast("str", self.config.teacher)).config)
        if self.trimming is not None:
            trim_model(teacher, self.trimming.ids)
        return _new_student(self.config, teacher, self.shape)

    def notes(self) -> list[str]:
        """What was chosen before anything is learned."""
        return [str(each) for each in (self.trimming, self.proposal) if each is not None]


def set_up(config: DistillConfig) -> Setup:
    """Read and check both models, the cheap things first."""
    assert config.teacher is not None
    sources = [look_up(name) for name in (config.teacher, config.student) if name is not None]
    sources[0].require(("plain", "packed"))  # a teacher is not trained
    for source in sources[1:]:
        source.require(("plain",))
        check_same_inputs(sources[0], source)
    teacher_config = sources[0].config
    student, shape = teacher_config, None
    if config.student is not None:
        student = sources[1].config
    elif not config.has_budget:
        shape = student_shape(config, teacher_config)
        student = student_config(teacher_config, shape)
    processor = models.load_processor(config.teacher)
    if config.student is not None and hasattr(processor, "get_vocab"):
        check_same_tokens(processor, models.load_processor(config.student))
    length = _length(config, teacher_config, student)
    teacher = _load_teacher(config, teacher_config)
    trimming = None
    if config.trim:
        trimming, processor = trim_teacher(config, teacher, processor, _corpus(config, length))
    proposal = None
    if config.has_budget:
        proposal = choose_shape(config, teacher, config.max_length or (length and min(length, TIMED)))
        shape = proposal.shape
    student_anatomy = Anatomy.of(_new_student(config, teacher, shape))
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
        "corpus_weights": None if isinstance(corpus, ImageCorpus) else corpus.shares,
        **(shape_of(student_anatomy.model) if config.student is None else {}),
    }
    return Setup(teacher, processor, corpus, length, config, sentence, shape, proposal, trimming, resolved)


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
        return config.open_texts()
    for name in ("text_column", "header", *sorted(TOKEN_SETTINGS), *MIXTURE_SETTINGS):
        if (value := getattr(config, name)) is not None:
            raise ConfigError(f"`{name}` is `{value}`, and the teacher sees images; leave it out")
    return open_images(config.corpus)


def student_shape(config: DistillConfig, teacher: PretrainedConfig) -> StudentShape:
    """How large the student is, with as many heads as the paper's students where nothing speaks for the teacher's."""
    shape = StudentShape.make({name: getattr(config, name) for name in StudentShape.model_fields})
    if shape.heads is not None or common_heads(config, teacher) is not None or not _twelve_fit(shape, teacher):
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
        if config.trim:
            raise ConfigError("`trim` drops word pieces, and the teacher sees images; leave it out")
        return None
    limits = map(models.positions, (teacher, student))
    return example_length(config.max_length, *limits, default=PRESETS[config.preset]["max_length"])


def _new_student(config: DistillConfig, teacher: PreTrainedModel, shape: StudentShape | None) -> PreTrainedModel:
    import transformers

    if shape is not None:
        return build_student(teacher, shape, config.seed)
    assert config.student is not None
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
