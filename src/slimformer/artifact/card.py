"""The model card: `README.md`, made from the manifest alone, so that it can be made again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slimformer.artifact.manifest import FileSum, Manifest, ModelRecord, Step, TaskRecord

#: What the Hub calls a model, by how its class name ends.
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForImageClassification": "image-classification",
}
#: Files that prepare inputs, the class that reads them and the name it gets in the example.
LOADERS = (
    ("processor_config.json", "AutoProcessor", "processor"),
    ("preprocessor_config.json", "AutoImageProcessor", "processor"),
    ("tokenizer_config.json", "AutoTokenizer", "tokenizer"),
)


def write_card(manifest: Manifest) -> str:
    """Write the card of an artifact; `files` of the manifest may lack the card itself."""
    parts = [
        _front_matter(manifest),
        f"# {_title(manifest)}",
        _introduction(manifest),
        "## Load\n\n" + _loading(manifest),
        "## How it was made\n\n" + _steps(manifest.steps),
    ]
    if manifest.task is not None:
        parts.append("## Task\n\n" + _task(manifest.task))
    if manifest.metrics:
        parts.append("## Metrics\n\n" + _metrics(manifest.metrics))
    parts.append("## Size\n\n" + _size(manifest.model, manifest.files))
    parts.append("## Versions\n\n" + _table(("Library", "Version"), sorted(manifest.steps[-1].versions.items())))
    parts.append("`slimformer verify path/to/this/folder` checks that the folder is as it was saved.")
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Manifest) -> str:
    lines = ["---", "library_name: transformers"]
    origin = next((step.base.name for step in manifest.steps if step.base is not None), None)
    # Only an owner/name is a name the Hub can follow.
    if origin is not None and origin.count("/") == 1:
        lines.append(f"base_model: {json.dumps(origin, ensure_ascii=False)}")
    for ending, pipeline in PIPELINES.items():
        if manifest.model.architecture.endswith(ending):
            lines.append(f"pipeline_tag: {pipeline}")
    lines.append("tags:")
    tags = dict.fromkeys(["slimformer", *(step.method for step in manifest.steps)])
    lines.extend(f"- {json.dumps(tag, ensure_ascii=False)}" for tag in tags)
    return "\n".join([*lines, "---"])


def _title(manifest: Manifest) -> str:
    origin = manifest.steps[0].base
    names = ["" if origin is None else origin.name, *(step.method for step in manifest.steps)]
    made_for = "" if manifest.task is None else f" for {manifest.task.name}"
    return _plain(" → ".join(name for name in names if name) + made_for)


def _introduction(manifest: Manifest) -> str:
    methods = ", then ".join(f"`{_plain(step.method)}`" for step in manifest.steps)
    origin = manifest.steps[0].base
    start = "" if origin is None else f", starting from `{_plain(origin.name)}`"
    return f"A `{manifest.model.architecture}` made with slimformer by {methods}{start}."


def _loading(manifest: Manifest) -> str:
    ours = '```python\nimport slimformer\n\nmodel = slimformer.load("path/to/this/folder").model\n```'
    if MASK not in manifest.files:
        packed = manifest.model.packed is not None
        alone = "With Transformers, once slimformer is imported:" if packed else "With Transformers alone:"
        return "\n\n".join([alone, _example(manifest, packed), "With slimformer, which checks every file first:", ours])
    name = "its base" if manifest.base is None else f"`{_plain(manifest.base.name)}`"
    return "\n\n".join(
        [
            f"This is a mask: one bit for each masked weight of {name}, and the head. It is loaded on that base:",
            ours,
            "`slimformer merge path/to/this/folder --out plain` makes a checkpoint that needs neither.",
        ]
    )


def _example(manifest: Manifest, packed: bool) -> str:
    name = manifest.model.architecture
    lines = [f'model = {name}.from_pretrained("path/to/this/folder")']
    imports = [name]
    for file, auto, variable in LOADERS:
        if file in manifest.files:
            imports.append(auto)
            lines.append(f'{variable} = {auto}.from_pretrained("path/to/this/folder")')
            break
    first = ["import slimformer  # teaches Transformers to read packed weights"] if packed else []
    transformers = f"from transformers import {', '.join(sorted(imports))}"
    return "\n".join(["```python", *first, transformers, "", *lines, "```"])


def _steps(steps: Sequence[Step]) -> str:
    rows = [
        (
            str(number),
            step.method,
            "" if step.base is None else step.base.name,
            "" if step.seed is None else str(step.seed),
            json.dumps(step.config, sort_keys=True, ensure_ascii=False) if step.config else "",
        )
        for number, step in enumerate(steps, start=1)
    ]
    return _table(("Step", "Method", "Base", "Seed", "Config"), rows)


def _task(task: TaskRecord) -> str:
    rows = [("Name", task.name), ("Kind", task.kind)]
    if task.labels is not None:
        rows.append(("Labels", ", ".join(task.labels)))
    return _table(("", ""), rows)


def _metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (data, name, f"{value:.4f}" if abs(value) < 1e4 else f"{value:.6g}")
        for data, values in sorted(metrics.items())
        for name, value in sorted(values.items())
    ]
    return _table(("Data", "Metric", "Value"), rows)


def _size(model: ModelRecord, files: Mapping[str, FileSum]) -> str:
    stored = sum(sums.bytes for name, sums in files.items() if name.endswith(".safetensors"))
    rows = [("Parameters", f"{model.parameters:,}"), ("Type", model.dtype), ("Weights", f"{stored:,} bytes")]
    if model.packed is not None:
        rows.insert(2, ("Packed as", ", ".join(model.packed)))
    return _table(("", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Keep a text on its line and in its cell, and HTML from being HTML."""
    joined = " ".join(text.split())
    return joined.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
