"""`--dry-run`: what a run would do and cost, from its checks and a few timed steps; nothing is written.

It goes the way of `slimformer.methods.run` as far as training. Where a run has phases, the first one is rehearsed and
the others are named: what they start from is not there yet.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.artifact.storage.precision import check_range
from slimformer.corpus.options import keeping_nothing
from slimformer.errors import UsageError
from slimformer.methods.output import OutputDirectory
from slimformer.methods.run import check_push, run, show_notes
from slimformer.registry import METHODS
from slimformer.train.folder import METHOD
from slimformer.train.rates import RATE_SETTINGS
from slimformer.train.rehearsal import peak_memory, rehearsing

if TYPE_CHECKING:
    from slimformer.config import Config
    from slimformer.methods.method import Method, RunOptions
    from slimformer.methods.output import RunResult

#: Settings that name what a run fills beside its result.
WRITTEN = ("tensorboard", "track", "teacher_cache", "teacher_cache_limit", "report")


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        method: The method.
        out: Where its result would go.
        steps: Optimizer steps; 0 where nothing is trained.
        examples: Examples that these see, over all of them.
        tokens: Tokens of these, by the mean of those seen; 0 for images.
        parameters: Weights of the model, and those of them that are trained.
        trained: Likewise.
        memory: The most bytes this process has taken so far, which a run takes too.
        step_seconds: Time of a step here.
        runs: How often that is done: once for each learning rate of a grid.
        trials: Steps of trials that come before.
        left_open: Settings that nobody gave, and what they are.
        after: Runs that come after this one, of which it is the first.
        notes: What a user should know.
    """

    method: str
    out: str | None
    steps: int = 0
    examples: int = 0
    tokens: int = 0
    parameters: int = 0
    trained: int = 0
    memory: int = 0
    step_seconds: float = 0.0
    runs: int = 1
    trials: int = 0
    left_open: dict[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Time of all steps, without measuring on dev."""
        return self.step_seconds * (self.steps * self.runs + self.trials)

    def summary(self) -> dict[str, Any]:
        """The plan as JSON types."""
        own = {name: value for name, value in vars(self).items() if name not in ("after", "notes")}
        seconds = {"step_seconds": float(f"{self.step_seconds:.4g}"), "seconds": float(f"{self.seconds:.4g}")}
        return {"dry_run": True, **own, **seconds, "after": list(self.after), "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """The plan as a person reads it."""
        lines = [f"{self.method}: {self.parameters:,} weights, {self.trained:,} of them trained"]
        if self.steps:
            tokens = f", about {self.tokens:,} tokens" if self.tokens else ""
            times = f", for each of {self.runs} learning rates" if self.runs > 1 else ""
            lines += [
                f"{self.steps:,} steps, {self.examples:,} examples{tokens}{times}",
                f"about {describe_seconds(self.seconds)} here, {1000 * self.step_seconds:.0f} ms a step, without "
                "measuring on dev",
            ]
        else:
            lines.append("no steps: nothing is trained by gradients")
        lines.append(f"about {self.memory / 2**20:,.0f} MiB of memory")
        lines += [f"after it: {note}" for note in self.after]
        return [*lines, f"nothing was written{'' if self.out is None else f'; the result would go to {self.out}'}"]


def carry_out(method: type[Method[Any]], config: Config, options: RunOptions) -> RunResult | Plan:
    """A run in earnest, or what it would do where that is all that was asked."""
    return rehearse(method, config, options) if options.dry_run else run(method, config, options)


def rehearse(method: type[Method[Any]], config: Config, options: RunOptions) -> Plan:
    """Check a run and take a few of its steps; nothing is written, and places are only tried.

    Args:
        method: The method.
        config: Its settings.
        options: How the run would be carried out.
    """
    if options.resume:
        raise UsageError("`--dry-run` looks at a run from its beginning; leave out `--resume`")
    check_push(config, options)
    method = method.for_settings(config)
    rates = getattr(config, "lr_grid", None) or ()
    left_out = {*WRITTEN, *(RATE_SETTINGS if rates else ())}
    settings = {name: value for name, value in config.given().items() if name not in left_out}
    with models.trusting(options.trust_remote_code):
        state = method(type(config).make({**settings, **({"lr": rates[0]} if rates else {})}), options)
        with state.resources, keeping_nothing():
            plan = _rehearse(state)
    return replace(plan, runs=len(rates) or 1)


def _rehearse(state: Method[Any]) -> Plan:
    state.check()
    out = getattr(state.config, "out", None)
    output = OutputDirectory.of(out, state.files)
    output.check_apart(state.config, state.starts_from if state.replaces_base else None)
    output.check({METHOD: state.name, **state.training_settings}, state.options)
    phases = state.phases()
    if phases:
        plan = rehearse(METHODS.get(phases[0].method), phases[0].config, state.options)
        named = [each.note or each.method for each in phases[1:]]
        return replace(plan, after=(*plan.after, *named, f"`{state.name}` itself, into `{out}`"))
    state.start()
    if hasattr(state, "model"):
        check_range(state.model, state.store)
    left_open = state.left_open()
    if not state.options.quiet:
        show_notes(state.notes)
    with (
        tempfile.TemporaryDirectory(prefix="slimformer-", ignore_cleanup_errors=True) as folder,
        rehearsing(Path(folder)) as taken,
    ):
        if state.trains:
            state.train(Path(folder))
    then = getattr(state.config, "then_task", None)
    return Plan(
        method=state.name,
        out=out,
        steps=taken.total,
        examples=taken.all_examples,
        tokens=taken.all_tokens,
        parameters=taken.parameters or sum(each.numel() for each in state.model.parameters()),
        trained=taken.trained,
        memory=peak_memory(),
        step_seconds=taken.step_seconds if taken.seconds else 0.0,
        trials=taken.trials,
        left_open=left_open,
        after=() if then is None else (f"fine-tuning on task `{then}`",),
        notes=tuple(state.notes),
    )


def describe_seconds(seconds: float) -> str:
    """A time as a person reads it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"
