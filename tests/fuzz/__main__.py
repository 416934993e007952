"""`python -m tests.fuzz TARGET FOLDER [options of libFuzzer]`: fuzz one target; the folder keeps what reaches more.

An exception that is no `SlimformerError` ends it, and the input lies in `FOLDER/../crash-…`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["slimformer"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer's options say it is enough."""
    name, folder, *options = sys.argv[1:]
    corpus = Path(folder)
    corpus.mkdir(parents=True, exist_ok=True)
    target = TARGETS[name]
    for number, content in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
    with atheris.instrument_imports(include=["slimformer"]):
        function = target.function()
    limits = ["-timeout=20", "-rss_limit_mb=2048", "-max_len=16384", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([sys.argv[0], *limits, *options, str(corpus)], function)
    atheris.Fuzz()


main()
