"""The command line: one thin file per command, loaded only when it is called."""

from slimformer.cli.app import main

__all__ = ["main"]
