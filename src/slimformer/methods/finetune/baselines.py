"""Ways of fine-tuning that keep a model close to its base: what arXiv 2210.02871 compares adapted models with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from slimformer.config import Config, Positive, PositiveNumber
from slimformer.errors import ConfigError
from slimformer.models import new_weights
from slimformer.objectives.spec import TermSpec, build_terms, parse_entry, parse_terms, read_options
from slimformer.objectives.terms.embeddings import Contrastive
from slimformer.objectives.terms.smoothness import NOISED, R3F, NoisedStudent
from slimformer.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.objectives.teacher import Source
    from slimformer.tasks import Task
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.train import Objective
    from slimformer.train.run import OptimizerChoice

#: Share of the steps after which learning has taken over by half, unless told; the paper tries 100 to 1,000 steps.
RECALLED = 0.1


class Baseline:
    """One way; each changes the objective, the optimizer or the weights after a step, and nothing else.

    Args:
        spec: The entry as it was written.
    """

    class Options(Config):
        """What may stand in brackets."""

    #: The option that a value without a name belongs to.
    positional: ClassVar[str | None] = None
    #: Whether a weight may stand behind it.
    weighted: ClassVar[bool] = False
    #: What it needs one class for each example for; None where any task will do.
    compares: ClassVar[str | None] = None

    def __init__(self, spec: TermSpec) -> None:
        self.spec = spec
        self.options: Any = read_options(spec, type(self))
        if spec.weight == 0:
            raise ConfigError(f"the weight of `{spec.label}` is 0, which changes nothing; give more, or `none`")
        if spec.weight != 1 and not self.weighted:
            known = ", ".join(f"`{name}=…`" for name in self.Options.model_fields)
            raise ConfigError(f"`{spec.name}` has no weight, but one is given; in brackets it has {known}")

    def __str__(self) -> str:
        return str(self.spec) if self.weighted else self.spec.label

    def check(self, task: Task) -> None:
        """Refuse a task it cannot learn."""
        if self.compares is not None and task.kind().linear_probe != "classes":
            raise ConfigError(
                f"`keep_close` is `{self}`, which compares {self.compares}, and task `{task.name}` is of kind "
                f"`{task.kind().name}`; give a task with one class for each text or image, or `recadam` or `mars`"
            )

    def objective(self, model: PreTrainedModel, kind: Kind, seed: int) -> Objective | None:
        """What is minimised; None for the task's own loss."""
        return None

    def before_step(self) -> Callable[[int], None] | None:
        """What is done before each step."""
        return None

    def after_step(self, model: PreTrainedModel) -> Callable[[int], None] | None:
        """What is done after each step; asked for while the model has the weights it starts from."""
        return None

    def optimizer(self, model: PreTrainedModel, total: int) -> OptimizerChoice | None:
        """What takes so many steps; None for AdamW. Asked for at the same time."""
        return None


class Recall(Baseline):
    """RecAdam: an optimizer that pulls weights to the base at first, and learns the task more and more."""

    class Options(Config):
        """How strong the pull is, and how it ends."""

        pull: PositiveNumber = Field(5000.0, description="How strong weights are pulled to those of the base.")
        anneal: Literal["sigmoid", "linear"] = Field("sigmoid", description="How learning takes over.")
        middle: Positive | None = Field(
            None,
            description="t0: step at which it has taken over by half (`linear`: wholly); by default a tenth of all.",
        )
        slope: PositiveNumber = Field(0.1, description="k: how quickly a sigmoid does.")

    positional = "pull"

    def optimizer(self, model: PreTrainedModel, total: int) -> OptimizerChoice | None:
        """RecAdam; weights that the base has not learn by Adam alone."""
        from slimformer.train.recadam import Annealing, RecAdam

        options, trained = self.options, dict(model.named_parameters())
        starts = {trained[name]: start for name, start in base_weights(model).items() if trained[name].requires_grad}
        annealing = Annealing(options.anneal, options.middle or max(1, round(RECALLED * total)), options.slope)
        return RecAdam, {"starts": starts, "pull": options.pull, "annealing": annealing}


class Projected(Baseline):
    """MARS: every matrix stays within a ball around the base's, that of a new head around 0."""

    class Options(Config):
        """How far a matrix may go."""

        radius: PositiveNumber = Field(1.0, description="λ: the largest sum of absolute changes of a matrix's row.")
        head_radius: PositiveNumber = Field(20.0, description="The same for matrices of a new head, measured from 0.")

    positional = "radius"
    norm: ClassVar[Literal["mars", "frobenius"]] = "mars"

    def after_step(self, model: PreTrainedModel) -> Callable[[int], None] | None:
        """Draw back what has gone too far."""
        from slimformer.train.projection import Projection

        return Projection(model, base_weights(model), self.options.radius, self.options.head_radius, self.norm)


class FrobeniusProjected(Projected):
    """The same with the Euclidean length of a whole matrix."""

    class Options(Config):
        """How far a matrix may go."""

        radius: PositiveNumber = Field(1.0, description="λ: the largest Euclidean length of a matrix's change.")
        head_radius: PositiveNumber = Field(4.0, description="The same for matrices of a new head, measured from 0.")

    norm = "frobenius"


class Regularised(Baseline):
    """A term beside the task's own loss."""

    weighted = True

    def term(self, model: PreTrainedModel) -> TermSpec:
        """The term, with its options and weight."""
        return self.spec

    def sources(self, model: PreTrainedModel, seed: int) -> Mapping[str, Source]:
        """Whom the term learns from."""
        return {}

    def objective(self, model: PreTrainedModel, kind: Kind, seed: int) -> Objective:
        """The task's own loss and the term."""
        from slimformer.anatomy import Anatomy
        from slimformer.objectives import Models, TermObjective

        specs = [*parse_terms(kind.loss_term), self.term(model)]
        terms = build_terms(specs, Models(Anatomy.of(model), items=kind.items), labelled=True)
        return TermObjective(terms, model, self.sources(model, seed))


class Smooth(Regularised):
    """R3F: predictions that small noise on the embeddings does not change."""

    class Options(R3F.Options):
        """The noise."""

    positional = R3F.positional
    compares = "the probabilities of classes"

    def sources(self, model: PreTrainedModel, seed: int) -> Mapping[str, Source]:
        """The model itself on noised embeddings."""
        self.noised = NoisedStudent(model, self.options, seed, process=int(os.environ.get("RANK", "0")))
        return {NOISED: self.noised}

    def before_step(self) -> Callable[[int], None]:
        """Let the noise be that of the step."""
        return self.noised.begin


class SupervisedContrast(Regularised):
    """SupCon: features of one class that lie together (arXiv 2004.11362)."""

    class Options(Contrastive.Options):
        """What a feature is, and how sharply they are told apart."""

        pooling: str = Field(
            "cls", description="Ways of pooling, joined by +; by default the first token, of decoders the last."
        )
        temperature: PositiveNumber = Field(0.1, description="What cosines are divided by.")

    positional = Contrastive.positional
    compares = "features of the same class"

    def term(self, model: PreTrainedModel) -> TermSpec:
        """The contrastive loss over labels."""
        from slimformer.anatomy import Anatomy

        options = self.options.model_dump()
        if Anatomy.of(model).family.causal and "pooling" not in self.options.model_fields_set:
            options["pooling"] = "lasttoken"  # the first one has seen nothing
        return TermSpec("contrastive", self.spec.weight, options=options)


#: The baselines by the names `--keep-close` knows.
BASELINES: Registry[type[Baseline]] = Registry(
    "baseline",
    {
        "recadam": (f"{__name__}:Recall", "Adam that recalls the base (arXiv 2004.12651)"),
        "mars": (f"{__name__}:Projected", "rows of matrices within a distance of the base's (arXiv 2002.08253)"),
        "frobenius": (f"{__name__}:FrobeniusProjected", "matrices within a distance of the base's"),
        "r3f": (f"{__name__}:Smooth", "predictions that noise does not change (arXiv 2008.03156)"),
        "supcon": (f"{__name__}:SupervisedContrast", "features of a class that lie together (arXiv 2004.11362)"),
    },
)


def read_baseline(text: str) -> Baseline:
    """The baseline that `--keep-close` names."""
    spec = parse_entry(text, registry=BASELINES)
    return BASELINES.get(spec.name)(spec)


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Copies of the weights that a model has from its base, by name."""
    new = new_weights(model)
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if name not in new}
