"""The commands there are, and how their results and failures reach the user."""

from __future__ import annotations

import logging
import signal
import sys

from cyclopts import App, CycloptsError, Parameter

from slimformer import __version__
from slimformer.cli.failing import (
    Ended,
    NoCommandError,
    check_surroundings,
    ending,
    fail,
    fail_unexpectedly,
    in_our_words,
    list_commands,
)
from slimformer.errors import SlimformerError, UsageError
from slimformer.models.trust import trusting
from slimformer.registry import COMMANDS, METHODS


def build_app() -> App:
    """The command line with every command there is; none of them is imported before it is called."""
    app = App(
        name="slimformer",
        help="One pretrained Transformer in; small, fast, elastic, task-ready models out.",
        help_epilogue=(
            "Add `--debug` to any command to see the traceback of an error, and `--trust-remote-code` to run code that "
            "a model brings along, which is never run otherwise."
        ),
        version=__version__,
        # `--corpus a.txt b.txt`: a flag with several values takes all that follow it.
        default_parameter=Parameter(consume_multiple=True, negative_iterable=()),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name in METHODS:
        app.command(f"slimformer.cli.methods:{name}", name=name, help=METHODS.help(name))
    for name in COMMANDS:
        app.command(COMMANDS.target(name), name=name, help=COMMANDS.help(name))
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit 0 on success, 1 on failure, 2 on wrong usage."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    end = tokens.index("--") if "--" in tokens else len(tokens)  # what follows is text, whatever it looks like
    debug, trust = "--debug" in tokens[:end], "--trust-remote-code" in tokens[:end]
    tokens = [token for token in tokens[:end] if token not in ("--debug", "--trust-remote-code")] + tokens[end:]
    # Its retries would bury our one line; what finally went wrong reaches us as an exception.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR if debug else logging.CRITICAL)
    by_flags = not any(token.startswith("--config") for token in tokens)
    try:
        check_surroundings()
        with trusting(trust), ending():
            build_app()(tokens or ["--help"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = (
            f"slimformer {tokens[0]}" if tokens and (tokens[0] in COMMANDS or tokens[0] in METHODS) else "slimformer"
        )
        explained = in_our_words(error)
        unknown = isinstance(explained, NoCommandError)
        listed = f"; there are:\n{list_commands()}" if unknown else f"; `{command} --help` lists what there is"
        fail(explained, 2, debug, hint=listed)
    except SlimformerError as error:
        fail(error, 2 if isinstance(error, UsageError) else 1, debug, by_flags=by_flags, values=tokens[1:])
    except KeyboardInterrupt as error:
        trains = bool(tokens) and tokens[0] in METHODS
        hint = "; the same command with `--resume` goes on from its last checkpoint, or begins anew" if trains else ""
        if "push" in tokens[:1]:
            hint = "; the Hub shows nothing of it unless all had arrived, and the same command sends it again"
        sys.stderr.write(f"interrupted{hint}\n")
        sys.exit(128 + (error.number if isinstance(error, Ended) else signal.SIGINT))
    except BrokenPipeError:
        # The reader of our output has gone; leave quietly, as `head` expects.
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        fail_unexpectedly(error, debug)
