"""Jobs for clusters and the commands of the guide: files whose every flag is one that its reader knows."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import fields

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from slimformer.errors import SlimformerError
from slimformer.methods.method import RunOptions
from slimformer.registry import METHODS
from tests.conftest import ROOT
from tests.docs import pages

SCALE = ROOT / "examples" / "scale"
RUN_OPTIONS = {field.name for field in fields(RunOptions)}


def commands(text: str) -> list[list[str]]:
    """The commands of a script that start processes, with variables filled in."""
    joined = re.sub(r"\\\n", " ", text)
    found = re.findall(r"(?:torchrun|accelerate launch) .*$", joined, flags=re.MULTILINE)
    return [shlex.split(re.sub(r"\$\(?\{?\w+\}?\)?", "1", line)) for line in found]


def launched(words: list[str]) -> list[str]:
    """What a launcher starts; it has to know all flags before that."""
    if words[0] == "torchrun":
        options = get_args_parser().parse_args(words[1:])
    else:
        options = launch_command_parser().parse_args(words[2:])
    assert options.module
    assert options.training_script == "slimformer"
    return options.training_script_args


def check(words: list[str]) -> dict[str, object]:
    """The settings of a command of ours, which are valid."""
    method, *rest = words
    settings: dict[str, object] = {}
    for word in rest:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            settings[name.replace("-", "_")] = last = [value] if equals else []
        else:
            last.append(word)
    settings = {name: values[0] if values else True for name, values in settings.items()}
    config = METHODS.get(method).config_class
    known = {name: value for name, value in settings.items() if name not in RUN_OPTIONS}
    config.make(known)
    return settings


def test_every_command_of_the_guide_can_be_typed():
    (page,) = [page for page in pages.pages() if page.name == "scale.md"]
    found = commands(page.read_text(encoding="utf-8"))
    # A line of prose that names both launchers is none.
    typed = [words for words in found if "-m" in words]
    assert len(typed) == 3
    for words in typed:
        check(launched(words))


def test_the_job_for_slurm():
    path = SCALE / "distill.sbatch"
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = path.read_text()
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, flags=re.MULTILINE))
    assert text.count("#SBATCH") == len(directives)
    # One launcher on each machine starts a process for each of its GPUs.
    assert directives["ntasks-per-node"] == "1"
    (words,) = commands(text)
    assert get_args_parser().parse_args(words[1:]).nproc_per_node == directives["gpus-per-node"]
    assert check(launched(words))["resume"] is True


def test_the_job_for_kubernetes():
    service, job = yaml.safe_load_all((SCALE / "distill.yaml").read_text())
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    spec, name = job["spec"], job["metadata"]["name"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]]
    options = get_args_parser().parse_args(words[1:])
    assert options.nnodes == str(spec["completions"]) == str(spec["parallelism"])
    assert options.nproc_per_node == str(container["resources"]["limits"]["nvidia.com/gpu"])
    # The first pod is found by the name that the service gives it.
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert options.master_addr == f"{name}-0.{pod['subdomain']}"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert check(launched(words))["resume"] is True


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("torchrun --nproc_per_node 8 --processes 2 -m slimformer distill --teacher minilm", SystemExit),
        ("torchrun --nproc_per_node 8 -m slimformer distill --teacher minilm --shards", SlimformerError),
        ("accelerate launch --multi_gpu -m slimformer distill --teacher minilm --layers many", SlimformerError),
    ],
)
def test_a_flag_that_is_none_is_noticed(line, error):
    with pytest.raises(error):
        check(launched(shlex.split(line)))
