"""The real command, in a process of its own, in which libraries may write what they like to standard error."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests import forking, runs, zoo


@pytest.fixture(autouse=True)
def _columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def slimformer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(runs.in_a_process(*arguments), capture_output=True, text=True)


@pytest.mark.slow
def test_minilm_as_json():
    done = slimformer("inspect", "minilm", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["family"], summary["blocks"], summary["heads"], summary["ffn_width"]) == ("bert", 6, 12, 1536)
    assert summary["parameters"] == 22_713_216
    assert sum(part["parameters"] for part in summary["parts"]) == summary["parameters"]
    assert sum(part["bytes"] for part in summary["parts"]) == summary["bytes"] == 4 * summary["parameters"]


@pytest.mark.slow
def test_stories_as_a_table(stories):
    done = forking.run("inspect", stories)
    assert done.code == 0, done.err
    for text in ("LlamaForCausalLM (llama)", "gated ffn 768", "float16", "9,216,000", "15,191,712", "head (tied"):
        assert text in done.out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["modernbert", "vit_mae", "qwen3"])
def test_a_saved_folder(family, tmp_path):
    model = zoo.build_headed(family)
    model.save_pretrained(tmp_path)
    summary = forking.run("inspect", tmp_path, "--json").json
    assert summary["architecture"] == type(model).__name__
    assert summary["parameters"] == sum(parameter.numel() for parameter in model.parameters())


BAD = {
    "missing": (None, "no folder at `./missing`; give a model folder, a Hub name or one of: `minilm`"),
    "empty": ("", "folder `empty` has no config.json; give the folder that `save_pretrained` wrote"),
    "corrupt": ('{"model_type": "bert", ', "`corrupt/config.json` is not valid JSON"),
    "bytes": (b"\xff\xfe\x00", "`bytes/config.json` is not valid JSON"),
    "list": ("[1]", "`list/config.json` holds a list, not an object"),
    "unknown": ('{"model_type": "foo"}', "does not describe a model Transformers knows"),
    "other": (
        '{"model_type": "albert", "hidden_size": 8, "num_attention_heads": 2}',
        "`albert` is not known; known: bert",
    ),
    "sizes": ('{"model_type": "bert", "hidden_size": 7, "num_attention_heads": 3}', "not a multiple of the number of"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_folders_get_one_line(name, tmp_path, monkeypatch):
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).mkdir()
        if content:
            raw = content if isinstance(content, bytes) else content.encode()
            (tmp_path / name / "config.json").write_bytes(raw)
    monkeypatch.chdir(tmp_path)
    forking.run("inspect", f"./{name}").refused(message)


@pytest.mark.slow
def test_a_hub_name_that_cannot_be_fetched_gets_one_line():
    done = forking.run("inspect", "nobody/nothing")
    done.refused()
    assert done.err.startswith("error: `nobody/nothing` is no folder here and could not be fetched from the Hub")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "minilm", "--jsn"], "do you mean `--json`?"),
        (["inspect"], "no model is given; name one"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message):
    done = slimformer(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_debug_shows_the_traceback():
    done = slimformer("inspect", "./missing", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "CheckpointError" in done.stderr


def test_help_lists_the_commands():
    for arguments in ([], ["--help"]):
        done = slimformer(*arguments)
        assert done.returncode == 0
        assert "inspect" in done.stdout
    assert slimformer("--version").stdout.strip() == __import__("slimformer").__version__
