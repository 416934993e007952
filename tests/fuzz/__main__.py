"""`python -m tests.fuzz TARGET FOLDER [options of libFuzzer]`: fuzz one target; the folder keeps what reaches more.

An exception that is no `SlimformerError` ends it, and the input lies in `FOLDER/../crash-…`.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import atheris

# An editable install wraps the loaders of its modules, and atheris would add no counters to what such a loader reads.
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")]

with atheris.instrument_imports(include=["slimformer"]):
    from tests.fuzz.targets import TARGETS

#: Bytes that inputs may take beyond what is in use once all is imported.
MEMORY = 2 << 30


def limit_memory() -> None:
    """Let an input that takes too much end in a `MemoryError`.

    libFuzzer's own limit looks at the peak of the process, which counts that of the process it was started from.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def main() -> None:
    """Fuzz until libFuzzer's options say it is enough."""
    name, folder, *options = sys.argv[1:]
    corpus = Path(folder)
    corpus.mkdir(parents=True, exist_ok=True)
    target = TARGETS[name]
    with atheris.instrument_imports(include=["slimformer"]):
        function = target.function()
        contents = target.seeds()
    for number, content in enumerate(contents):
        (corpus / f"seed-{number}").write_bytes(content)
    limits = ["-timeout=20", "-rss_limit_mb=0", "-max_len=16384", f"-artifact_prefix={corpus.parent}/"]
    limit_memory()
    atheris.Setup([sys.argv[0], *limits, *options, str(corpus)], function)
    atheris.Fuzz()


main()
