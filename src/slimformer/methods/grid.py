"""One run at several learning rates, of which the best is kept; see `slimformer.train.rates`.

Each rate is a run of its own, sealed by its artifact, so that a run that was interrupted goes on with the first rate
that has none. They lie in `OUT.training` until the best one has got its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slimformer import artifact
from slimformer.errors import ConfigError, DivergenceError, TrainingError
from slimformer.methods.method import Phase
from slimformer.methods.output import OutputDirectory, describe_rate, is_main
from slimformer.methods.run import base_fingerprint, run_phase, show_notes, wait_for_all
from slimformer.tasks.metrics import SMALLER_IS_BETTER
from slimformer.train.folder import BASE, DIGEST, METHOD
from slimformer.train.rates import RATE_SETTINGS, best_rate, next_rate

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.config import Config
    from slimformer.methods.method import Method, RunOptions
    from slimformer.methods.output import RunResult

#: Where the runs at each rate lie in the folder of the whole run.
RATES = "rates"
#: Under this name the record of a step keeps the score of every rate that was tried.
SCORES = "lr_scores"


def run_grid(method: type[Method[Any]], config: Any, options: RunOptions) -> RunResult:
    """Carry out a run at every rate of its grid, and at more where the best is on the border; keep the best.

    Args:
        method: The method.
        config: Its settings, `lr_grid` among them.
        options: How to carry it out.
    """
    plain = {name: value for name, value in config.given().items() if name not in RATE_SETTINGS}
    state = method(type(config).make(plain), options)
    settings = {name: value for name, value in state.settings.items() if name != "lr"}
    settings |= {"lr_grid": list(config.lr_grid), "lr_widenings": config.lr_widenings}
    with state.resources:
        return state.follow_up(_run(state, config, settings))


def _run(state: Method[Any], config: Any, settings: dict[str, Any]) -> RunResult:
    state.check()
    reason = state.unscored()
    if reason is not None:
        raise ConfigError(f"`--lr-grid` keeps the rate with the best score on dev, and {reason}")
    options = state.options
    output = OutputDirectory.of(getattr(config, "out", None), (*state.files, RATES))
    output.check_apart(config, state.starts_from if state.replaces_base else None)
    done = output.finished(state.name, settings) if options.resume else None
    if done is not None:
        assert output.path is not None
        scores: Any = done.manifest.steps[-1].config[SCORES]
        return replace(state.reload(done, output.path), rates=scores)
    output.check({METHOD: state.name, **settings}, options)
    with output.working() as folder:
        phases = state.phases()
        for phase in phases:
            run_phase(phase, options)
        # What a phase has made is what every rate starts from.
        started = {state.starts_from: state.base} if phases else {}
        settings = {**settings, DIGEST: _read_data(state, started)}
        begun = {METHOD: state.name, **settings, BASE: base_fingerprint(state)}
        output.check_free(options)  # much may have happened since
        if is_main():
            folder.begin(begun, options.resume)
        trials = Trials(state, started, None if output.path is None else folder.path / RATES)
        rate, result = trials.run(config.lr_grid, config.lr_widenings)
        if output.path is not None:
            assert result.folder is not None
            if is_main():
                # What was left open stays as the run at that rate has recorded it.
                asked = {name: value for name, value in settings.items() if value is not None}
                kept = {**asked, "lr": rate, SCORES: trials.rates}
                artifact.republish(result.folder, output.path, kept, overwrite=options.overwrite)
            wait_for_all()  # the process that writes removes the folder once it is done
    return replace(result, folder=output.path, rates=trials.rates)


def _read_data(state: Method[Any], changes: dict[str, Any]) -> str:
    """The digest of what every rate learns from; rates that are sealed already do not look at the data again.

    Models and data are read by a state of its own, which is gone before the first rate reads them.
    """
    config: Config = state.config
    reader = type(state)(type(config).make({**config.given(), **changes}), state.options)
    with reader.resources:
        return reader.start()


@dataclass
class Trials:
    """The runs of a grid.

    Args:
        state: The method and its settings, at no rate in particular.
        started: What these settings are changed by at every rate.
        folder: Where results go; None to keep them in memory.
    """

    state: Method[Any]
    started: dict[str, Any]
    folder: Path | None
    scores: dict[float, float | None] = field(default_factory=dict)
    metric: str = ""

    @property
    def rates(self) -> dict[str, float | None]:
        """Each rate and its score, by the lowest rate first."""
        return {f"{rate:g}": self._sign(score) for rate, score in sorted(self.scores.items())}

    def run(self, grid: tuple[float, ...], widenings: int) -> tuple[float, RunResult]:
        """Try the rates of a grid and at most so many more; return the best one and what it gave."""
        best: tuple[float, RunResult] | None = None
        waiting = list(grid)
        while waiting:
            rate = waiting.pop(0)
            result = self._try(rate)
            # Only the best model so far stays in memory.
            if result is not None and best_rate(self.scores) == rate:
                best = (rate, result)
            if not waiting and best is None:
                raise TrainingError(
                    f"the loss became no number at every learning rate from {min(grid):g} to {max(grid):g}; "
                    "give lower ones to `--lr-grid`"
                )
            if not waiting and len(self.scores) < len(grid) + widenings:
                further = next_rate(grid, self.scores)
                waiting = [] if further is None else [further]
        assert best is not None
        return best

    def _try(self, rate: float) -> RunResult | None:
        """One run; None if it diverged, which is an answer too."""
        try:
            result: RunResult | None = run_phase(self._phase(rate), self._options)
        except DivergenceError:
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise  # the other processes wait for this one's gradients
            result = None
        score = None if result is None else result.score
        if score is not None:
            self.metric = score[0]
        self.scores[rate] = None if score is None else self._sign(score[1])
        if not self.state.options.quiet:
            show_notes([describe_rate(f"{rate:g}", self._sign(self.scores[rate]))])
        return result

    def _phase(self, rate: float) -> Phase:
        config: Config = self.state.config
        changes: dict[str, Any] = {**self.started, "lr": rate}
        # What a run leaves beside its result would be overwritten by that of the next rate.
        for name in ("report", "tensorboard"):
            if getattr(config, name, None) is not None:
                changes[name] = None if name == "report" else f"{getattr(config, name)}/lr-{rate:g}"
        if self.folder is not None:
            changes["out"] = str(self.folder / f"lr-{rate:g}")
        return Phase(self.state.name, type(config).make({**config.given(), **changes}), f"learning rate {rate:g}")

    @property
    def _options(self) -> RunOptions:
        """A rate's result is the run's own and never replaces anything."""
        return replace(self.state.options, overwrite=False)

    def _sign(self, score: float | None) -> float | None:
        """A score as higher-is-better, and back again."""
        return -score if score is not None and self.metric in SMALLER_IS_BETTER else score
