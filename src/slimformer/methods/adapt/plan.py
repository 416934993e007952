"""Which runs adapting consists of, where each lies, and what it was made of."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slimformer.artifact import read_manifest
from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.provenance import describe_base
from slimformer.corpus.options import CorpusOptions
from slimformer.errors import ConfigError, TrainingError
from slimformer.files import as_path
from slimformer.methods.extend.config import ExtendConfig
from slimformer.methods.method import Phase
from slimformer.methods.output import OutputDirectory
from slimformer.train.folder import DIGEST

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from slimformer.config import Config
    from slimformer.inference.source import Source
    from slimformer.methods.adapt.config import AdaptConfig
    from slimformer.methods.method import RunOptions

#: The phase in which the model gets new pieces, and the one in which a new head is trained alone.
VOCABULARY, WARM_UP = "vocabulary", "warmup"


@dataclass(frozen=True)
class Plan:
    """The phases of a run: new pieces, a new head trained alone, and all rounds but the last, which is the run itself.

    Args:
        config: The settings of the whole.
        model: The checkpoint that the user named.
        options: How the run is carried out.
        warm_up: Whether there is a new head.
        resources: Closed when the run is over; with it goes what is kept in memory only.
    """

    config: AdaptConfig
    model: str
    options: RunOptions
    warm_up: bool
    resources: ExitStack

    @property
    def base(self) -> str:
        """The checkpoint that is pre-trained further: the user's, or that with new pieces."""
        return self.model if self.config.new_tokens is None else self.folder(VOCABULARY)

    @property
    def origin(self) -> str:
        """What every round starts from: the base, with the head that was warmed up if it has none."""
        return self.folder(WARM_UP) if self.warm_up else self.base

    @property
    def teacher(self) -> str | None:
        """What the last round keeps to."""
        rounds = self.rounds
        return rounds[-1] if rounds else self.config.teacher

    @property
    def rounds(self) -> list[str]:
        """Folders of all rounds but the last."""
        return [self.folder(f"round-{number}") for number in range(self.config.own_rounds)]

    def phases(self, method: str) -> list[Phase]:
        """The runs that come first.

        Args:
            method: Name of the method.
        """
        config, phases = self.config, []
        if config.new_tokens is not None:
            corpus = {name: getattr(config, name) for name in CorpusOptions.model_fields}
            extension = ExtendConfig.make(
                {"model": self.model, "new_tokens": config.new_tokens, "out": self.base, **corpus}
            )
            phases.append(Phase("extend", extension, f"{config.new_tokens} new word pieces: `{self.base}`"))
        if self.warm_up:
            settings = config.phase(
                WARM_UP, model=self.base, trains="head", out=self.origin, epochs=1.0, max_steps=config.head_steps
            )
            phases.append(Phase(method, settings, f"a head to reconstruct with, trained alone: `{self.origin}`"))
        teacher = None
        for number, folder in enumerate(self.rounds):
            what = "further pre-training" if number == 0 else f"round {number} of self-distillation"
            settings = config.phase(f"round-{number}", model=self.origin, teacher=teacher, out=folder)
            phases.append(Phase(method, settings, f"{what}: `{folder}`"))
            teacher = folder
        return phases

    def check_settings(self, source: Source) -> None:
        """Refuse settings of a phase that cannot be, or that there is none of.

        Args:
            source: The checkpoint that the user named.
        """
        from slimformer.methods.extend.method import check_extendable

        config = self.config
        if config.new_tokens is not None:
            check_extendable(source)
        if config.head_steps != type(config).model_fields["head_steps"].default and not self.warm_up:
            raise ConfigError(
                f"`head_steps` is {config.head_steps}, and `{source.name}` has the head it needs, so that none is "
                "warmed up; leave it out"
            )

    def check(self, config: Config, settings: dict[str, Any], files: tuple[str, ...]) -> None:
        """Refuse a place for a phase that is taken, before the first of them is trained.

        Args:
            config: The settings of the phase.
            settings: What tells its run from others.
            files: Names of files that a run writes beside its checkpoints.
        """
        output = OutputDirectory.of(getattr(config, "out", None), files)
        output.check_apart(self.config)
        assert output.path is not None
        if not (self.options.resume and (output.path / MANIFEST).exists()):
            output.check(settings, self.options)

    def check_made_of(self, corpus: str) -> None:
        """Refuse phases that were made of another corpus or base.

        Args:
            corpus: The digest of the corpus.
        """
        made_of = {self.base: self.model} if self.base != self.model else {}
        made_of |= {self.origin: self.base} if self.warm_up else {}
        for folder, base in {**made_of, **dict.fromkeys(self.rounds, self.origin)}.items():
            if not (as_path(folder) / MANIFEST).exists():
                continue
            manifest = read_manifest(folder)
            fingerprint = None if manifest.base is None else manifest.base.fingerprint
            learned_from = str(manifest.steps[-1].config.get(DIGEST))
            if not learned_from.startswith(corpus) or fingerprint != describe_base(base).fingerprint:
                raise TrainingError(
                    f"`{folder}` was made of another corpus or base than this run has now; put that back, or remove "
                    "the folder and the others of this run beside it, to start anew"
                )

    def digest(self, corpus: str) -> str:
        """What tells what is learned from, and from whom.

        Args:
            corpus: The digest of the corpus.
        """
        self.check_made_of(corpus)
        return corpus if self.teacher is None else f"{corpus} {describe_base(self.teacher).fingerprint}"

    def tokens_per_word(self) -> dict[str, float]:
        """What new pieces do to held-out text, as their phase has measured it; nothing where there are none."""
        if self.config.new_tokens is None:
            return {}
        measured = read_manifest(self.base).metrics["corpus"]
        return {name: measured[name] for name in ("tokens_per_word_before", "tokens_per_word")}

    def folder(self, phase: str) -> str:
        """Where a phase lies: beside the result, or in a temporary folder where that is kept in memory."""
        if self.config.out is None:
            return str(self._scratch / phase)
        path = OutputDirectory.of(self.config.out).path
        assert path is not None
        return str(path.absolute().with_name(f"{path.name}.{phase}"))

    @cached_property
    def _scratch(self) -> Path:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("several processes cannot share rounds that are kept in memory; give `out`")
        return as_path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="slimformer-")))
