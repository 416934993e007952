"""One run, whatever the method: checks, phases, training, measuring, saving, in this order.

Settings, the output directory, models and data are checked before training, and nothing half written is left behind.
While a run is unfinished its checkpoints lie beside the result, in `OUT.training`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slimformer import artifact, models
from slimformer.artifact.provenance import describe_base
from slimformer.artifact.storage.precision import check_range, describe_rounding
from slimformer.errors import UsageError, visible
from slimformer.methods.method import RunOptions, configure
from slimformer.methods.output import OutputDirectory, is_main
from slimformer.registry import METHODS
from slimformer.train.folder import BASE, DIGEST, METHOD
from slimformer.train.options import CARRIED_OUT
from slimformer.train.sharding.launching import check_launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from slimformer.config import Config
    from slimformer.methods.method import Method, Phase
    from slimformer.methods.output import RunResult
    from slimformer.train import Trained


#: What a run notes of itself beside its settings.
COUNTS = ("steps", "kept_step")


def run(method: type[Method[Any]], config: Config, options: RunOptions) -> RunResult:
    """Carry out one run of a method.

    Args:
        method: The method.
        config: Its settings.
        options: How to carry it out.
    """
    if options.push_to_hub is not None:
        return _pushed(method, config, options, options.push_to_hub)
    method = method.for_settings(config)
    with models.trusting(options.trust_remote_code):
        if getattr(config, "lr_grid", None) is not None:
            from slimformer.methods.grid import run_grid

            return run_grid(method, config, options)
        state = method(config, options)
        with state.resources:
            return state.follow_up(_run(state))


def check_push(config: Config, options: RunOptions) -> None:
    """Refuse a push that could not be made, before the work for it."""
    from slimformer.integrations.hub import check_login, check_name

    name = options.push_to_hub
    if name is None:
        return
    if getattr(config, "out", None) is None:
        raise UsageError(f"`--push-to-hub` is `{name}`, and nothing is written without `--out`; give both")
    if is_main():
        check_name(name)
        check_login(name)


def _pushed(method: type[Method[Any]], config: Config, options: RunOptions, name: str) -> RunResult:
    """A run whose result is pushed to the Hub; what belongs to it, such as its phases, stays here."""
    from slimformer.integrations.hub import push

    check_push(config, options)
    result = run(method, config, replace(options, push_to_hub=None))
    if result.folder is None or not is_main():
        return result
    with models.trusting(options.trust_remote_code):
        pushed = push(result.folder, name)
    if not options.quiet:
        show_notes(list(pushed.notes))
    return replace(result, pushed=pushed)


def _run(state: Method[Any]) -> RunResult:
    check_launch(getattr(state.config, "shard", False))
    state.check()
    options, settings = state.options, state.settings
    output = OutputDirectory.of(getattr(state.config, "out", None), state.files)
    output.check_apart(state.config, state.starts_from if state.replaces_base else None)
    same = {name: value for name, value in settings.items() if name not in CARRIED_OUT}
    done = output.finished(state.name, same) if options.resume else None
    if done is not None:
        assert output.path is not None
        return state.reload(done, output.path)
    output.check({METHOD: state.name, **state.training_settings}, options)
    with output.working() as folder:
        for phase in state.phases():
            run_phase(phase, options)
        settings = {**settings, DIGEST: state.start()}
        if hasattr(state, "model"):  # one that is built in training has no weights yet
            check_range(state.model, state.store)
        left_open = state.left_open()
        output.check_free(options)  # much may have happened since
        if output.path is not None:
            step = artifact.Step(method=state.name, config={**settings, **left_open}, command=options.command)
            artifact.check_description(step, state.describe({}).get("task"))
        if is_main():
            begun = {
                METHOD: state.name,
                **state.training_settings,
                DIGEST: settings[DIGEST],
                BASE: base_fingerprint(state),
            }
            folder.begin(begun, options.resume)
        earlier = len(state.notes)
        if not options.quiet:
            show_notes(state.notes)
            show_settings(left_open)
        trained = state.train(folder.path)
        state.finish()
        rounded, metrics = _round(state, state.measure(trained))
        if not options.quiet:
            show_notes(state.notes[earlier:])
        if output.path is not None and is_main():
            artifact.save(
                output.path,
                state.model,
                processor=state.processor,
                step=_step(state, settings, left_open, trained),
                base=state.base,
                storage=state.storage(),
                overwrite=options.overwrite,
                rounded=rounded,
                **state.describe(metrics),
            )
    wait_for_all()  # what comes next reads what one process wrote
    return state.result(output.path, metrics, trained)


def _round(state: Method[Any], metrics: dict[str, float]) -> tuple[artifact.Rounded | None, dict[str, float]]:
    """Round the weights to what the file will hold; return what that changed, and the metrics of what is stored."""
    rounded = artifact.round_weights(state.model, state.store)
    if rounded is None:
        return None, metrics
    again = state.measure_rounded(metrics)
    if again is not None:
        changes = {name: float(f"{again[name] - value:.6g}") for name, value in metrics.items()}
        rounded = rounded.model_copy(update={"metrics": changes})
    state.notes.append(describe_rounding(rounded))
    return rounded, metrics if again is None else again


def base_fingerprint(state: Method[Any]) -> str | None:
    """What tells the weights of the base from others of the same name, where they lie on this machine."""
    return None if state.base is None else describe_base(state.base).fingerprint


def run_phase(phase: Phase, options: RunOptions) -> RunResult:
    """Carry out a run that belongs to another one; one that is sealed already is only read again."""
    if phase.note and not options.quiet:
        show_notes([phase.note])
    result = run(METHODS.get(phase.method), phase.config, options)
    wait_for_all()
    return result


def function_of(method: type[Method[Any]]) -> Callable[..., Any]:
    """The Python function of a method: its config as a whole, or settings and run options by name.

    It returns the result, or with `dry_run` the plan.
    """

    def call(config: Config | None = None, **settings: Any) -> Any:
        checked, options = configure(method.config_class, config, settings)
        if options.dry_run:
            from slimformer.methods.rehearsal import rehearse

            return rehearse(method, checked, options)
        return run(method, checked, options)

    call.__name__ = call.__qualname__ = method.name
    call.__doc__ = method.__doc__
    return call


def counts_of(step: artifact.Step) -> dict[str, Any]:
    """How many steps a run took and which step's weights it kept."""
    return {name: step.config[name] for name in COUNTS}


def show_notes(notes: list[str]) -> None:
    """Tell the user what was done to data or model that may not be expected."""
    for note in notes if is_main() else ():
        sys.stderr.write(f"note: {visible(note)}\n")


def show_settings(left_open: dict[str, Any]) -> None:
    """Tell the user what settings that were left open are in this run."""
    if left_open and is_main():
        line = ", ".join(_as_flag(name.replace("_", "-"), value) for name, value in left_open.items())
        sys.stderr.write(f"left open: {visible(line)}\n")


def _as_flag(name: str, value: Any) -> str:
    """A setting as it would be typed."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}"


def _step(state: Method[Any], settings: dict[str, Any], left_open: dict[str, Any], trained: Trained) -> artifact.Step:
    """The entry of a run in the chain of steps."""
    counts = dict(zip(COUNTS, (trained.steps, trained.kept_step), strict=True))
    return artifact.Step(
        method=state.name,
        config={**settings, **left_open, **state.found_out(), **counts},
        left_open=tuple(sorted(left_open)),
        seed=getattr(state.config, "seed", None),
        duration_s=trained.seconds,
        command=state.options.command,
    )


def wait_for_all() -> None:
    """Let all processes see what one of them wrote."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
