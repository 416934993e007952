"""Pinned runs: short trainings whose losses and metrics are written down.

Each JSON file of this folder holds the cases of one method, by name: its `settings`, in which models and data have
the names of `materials.py`, and what came of them, `log` and `metrics`. A case without a log is recorded by

    PYTHONPATH=src python -m tests.pins.trajectories

which leaves the others as they are: a pin is made before a change and holds through it. Where a result is meant to
change, delete its `log` and say why in the commit.

Most runs come out the same to a few parts in a million on any processor. Where activations are rounded, or weights
ranked that lie close, they do not: a last bit decides between two levels, and the runs part. Such a case is
`sensitive`; it holds to the full precision where the arithmetic is that of the recording, and roughly elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.pins.materials import Materials

HERE = Path(__file__).parent
METHODS = tuple(sorted(path.stem for path in HERE.glob("*.json")))
#: What a log has of the machine and not of the run.
OF_THE_MACHINE = frozenset({"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"})
ALWAYS = {"log_every": 1, "quiet": True, "threads": 1}


def read(method: str) -> dict[str, dict[str, Any]]:
    """The cases of a method by name."""
    cases: dict[str, dict[str, Any]] = json.loads((HERE / f"{method}.json").read_text())
    return cases


def run(method: str, settings: dict[str, Any], materials: Materials) -> dict[str, Any]:
    """Run a case through the public function of its method: the log without times, and the metrics."""
    import slimformer  # not above: `compare_commits` reads the cases without having any one version

    result = getattr(slimformer, method)(**materials.settings(settings), **ALWAYS)
    log = [{name: value for name, value in entry.items() if name not in OF_THE_MACHINE} for entry in result.log]
    return {"log": log, "metrics": result.losses if method == "distill" else result.metrics}


def arithmetic() -> str:
    """A digest of what this processor and these libraries make of the operations a model is of, to the last bit."""
    generator = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    for rows, width in ((24, 32), (40, 384)):
        x, weight = (torch.randn(count, width, generator=generator) for count in (rows, 4 * width))
        weight.requires_grad_()
        hidden = torch.nn.functional.gelu(x @ weight.mT)
        normal = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
        outputs = torch.nn.functional.log_softmax(normal @ weight, dim=-1)
        outputs.square().mean().backward()
        assert weight.grad is not None
        for tensor in (outputs, weight.grad, weight.grad.norm()):
            digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Record every case that has no log yet."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        materials = Materials(Path(folder))
        for method in METHODS:
            cases = read(method)
            for name, case in cases.items():
                if "log" not in case:
                    case.update(run(method, case["settings"], materials))
                    if case.get("sensitive"):
                        case["arithmetic"] = arithmetic()
                    sys.stdout.write(f"{method} {name}\n")
            (HERE / f"{method}.json").write_text(written(cases))


def written(cases: dict[str, dict[str, Any]]) -> str:
    """The text of a file: a line for each log entry and for whatever else there is."""
    parts = []
    for name, case in cases.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in case.items() if key != "log"]
        if "log" in case:
            entries = ",\n".join(f"   {json.dumps(entry)}" for entry in case["log"])
            lines.append(f'  "log": [\n{entries}\n  ]')
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
