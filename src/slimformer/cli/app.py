"""The commands there are, and how their results and failures reach the user."""

from __future__ import annotations

import logging
import sys

from cyclopts import App, CycloptsError, Parameter

from slimformer import __version__
from slimformer.cli.failing import fail, in_our_words
from slimformer.errors import SlimformerError, UsageError

#: Command → (where it lives, its line in the list of commands). Nothing is imported before it is called.
COMMANDS = {
    "demo": (
        "slimformer.cli.demo:demo",
        "Fine-tune, distil, mask and quantize a real model in a few minutes, offline.",
    ),
    "finetune": ("slimformer.cli.finetune:finetune_model", "Fine-tune a model on a task."),
    "distill": ("slimformer.cli.distill:distill_model", "Distil a teacher into a small student, without labels."),
    "mask": ("slimformer.cli.mask:mask_model", "Learn one bit per weight for a task, on top of a base."),
    "quantize": (
        "slimformer.cli.quantize:quantize_model",
        "Train a model on with a few levels per weight, taught by its float self.",
    ),
    "merge": ("slimformer.cli.merge:merge_mask", "Turn a mask and its base into a plain checkpoint."),
    "export": ("slimformer.cli.export:export_model", "Write a model as an ONNX file, and compare the two."),
    "evaluate": (
        "slimformer.cli.evaluate:evaluate_model",
        "Measure an artifact on a task, by default the one it was trained for.",
    ),
    "predict": (
        "slimformer.cli.predict:predict_requests",
        "Answer texts with a model: labels, numbers, tags, spans, vectors or text.",
    ),
    "bench": (
        "slimformer.cli.bench:bench_models",
        "Measure size, memory, latency and throughput of models, on random inputs.",
    ),
    "verify": ("slimformer.cli.verify:verify_artifact", "Check that an artifact is whole and answers as recorded."),
    "inspect": (
        "slimformer.cli.inspect:inspect_model",
        "Show what a model is made of, with parameters and bytes; no weights are loaded.",
    ),
}

#: Commands that keep what they have done when they are interrupted.
RESUMABLE = ("finetune", "distill", "mask", "quantize")

app = App(
    name="slimformer",
    help="One pretrained Transformer in; small, fast, elastic, task-ready models out.",
    help_epilogue="Add `--debug` to any command to see the traceback of an error.",
    version=__version__,
    # `--corpus a.txt b.txt`: a flag with several values takes all that follow it.
    default_parameter=Parameter(consume_multiple=True, negative_iterable=()),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _name, (_target, _help) in COMMANDS.items():
    app.command(_target, name=_name, help=_help)


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit 0 on success, 1 on failure, 2 on wrong usage."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    # Its retries would bury our one line; what finally went wrong reaches us as an exception.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR if debug else logging.CRITICAL)
    by_flags = not any(token.startswith("--config") for token in tokens)
    try:
        app(tokens or ["--help"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = f"slimformer {tokens[0]}" if tokens and tokens[0] in COMMANDS else "slimformer"
        fail(in_our_words(error), 2, debug, hint=f"; `{command} --help` lists what there is")
    except SlimformerError as error:
        fail(error, 2 if isinstance(error, UsageError) else 1, debug, by_flags=by_flags)
    except KeyboardInterrupt:
        hint = "; the same command with `--resume` goes on where it was" if tokens and tokens[0] in RESUMABLE else ""
        sys.stderr.write(f"interrupted{hint}\n")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone; leave quietly, as `head` expects.
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        fail(error, 1, debug, hint=f" ({type(error).__name__}, unexpected; `--debug` shows where)")
