"""How long `import slimformer` and `slimformer --help` take, against Python and torch in the same run."""

from __future__ import annotations

import subprocess
import sys

from harness import in_turn, keep, options

LIMITS = {"import slimformer": 0.4, "slimformer --help": 0.7}


def main() -> None:
    """Measure."""
    arguments = options(__doc__).parse_args()

    def python(code: str):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

    seconds = in_turn(
        {
            "python": python("pass"),
            "import slimformer": python("import slimformer"),
            "slimformer --help": python(
                "import sys; sys.argv[1:] = ['--help']; from slimformer.cli import main; main()"
            ),
            "import torch": python("import torch"),
        },
        rounds=1 if arguments.tiny else 15,
    )
    keep(
        "startup",
        arguments,
        {
            "median_seconds": seconds,
            "limits_seconds": LIMITS,
            "within_limits": {name: seconds[name] < limit for name, limit in LIMITS.items()},
        },
    )


if __name__ == "__main__":
    main()
