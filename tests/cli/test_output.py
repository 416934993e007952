"""What commands write: names of users and strangers are shown as they are, and do nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from slimformer.cli.failing import fail_unexpectedly
from slimformer.cli.output import print_line, print_notes, print_table
from slimformer.registry import COMMANDS, METHODS
from tests import corpus, runs
from tests.cli.bad_inputs import ESCAPES

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def test_markup_in_a_table_is_text(capsys):
    title = "[bold]a[/] [link=https://evil.example]b[/link]"
    print_table(title, ["[red]c", "d"], [["[/]", "[blink]e"], [ESCAPES, "f"]])
    out = capsys.readouterr().out
    for text in (title, "[red]c", "[/]", "[blink]e", "\\x1b]0;owned"):
        assert text in out
    assert not CONTROL.search(out)


def test_lines_and_notes_show_escape_sequences(capsys):
    print_line(ESCAPES)
    print_notes([ESCAPES])
    told = capsys.readouterr()
    assert not CONTROL.search(told.out + told.err)
    assert "\\x1b[2J" in told.out
    assert "\\x1b[2J" in told.err


@pytest.fixture(scope="module")
def hostile(shelf, base):
    """An artifact one of whose labels is an escape sequence, from data in a folder called by another."""
    folder = shelf / f"hostile{ESCAPES}"
    corpus.data_folder(folder)
    for file in folder.iterdir():
        file.write_text(file.read_text().replace("\tyes", f"\t{ESCAPES}").replace("\tno", f"\t[red]{ESCAPES}"))
    done = runs.finetune(base, "classification", folder, shelf / f"artifact{ESCAPES}")
    assert done.code == 0, done.err
    return shelf / f"artifact{ESCAPES}", folder, done


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_labels_and_paths_of_strangers_do_not_reach_the_terminal(flags, hostile):
    artifact, folder, trained = hostile
    commands = [
        ["predict", artifact, "a dull film", *flags],
        ["evaluate", artifact, "--data", folder, *flags],
        ["verify", artifact, *flags],
        ["inspect", artifact, *flags],
        ["compare", artifact, "--data", folder, "--timed", 2, *flags],
        ["bench", artifact, "--length", 8, "--seconds", 0, *flags],
    ]
    for done in (trained, *(runs.run(*command) for command in commands)):
        assert done.code == 0, done.err
        assert not CONTROL.search(done.out + done.err)
    if flags:  # machines get the label as it is
        answer = json.loads(runs.run(*commands[0]).out)
        assert answer["label"] in (ESCAPES, f"[red]{ESCAPES}")


#: What only a process of its own shows: a shell command → what it writes at last.
SHELL = {
    "a folder that is gone": (
        "mkdir gone && cd gone && rmdir ../gone && {slimformer} inspect {base}",
        "does not exist",
    ),
    "a disk that is full": ("{slimformer} inspect {base} --json > /dev/full", "free some space, or write elsewhere"),
    "an input that is closed": ("{slimformer} predict {artifact} --file - <&-", "standard input is closed"),
    "a pipe with a writer": ("echo a film | {slimformer} predict {artifact} --file /dev/stdin", "yes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELL)
def test_what_only_a_shell_does(name, base, artifact, tmp_path):
    command, word = SHELL[name]
    code = "from slimformer.cli import main; main()"
    slimformer = f"{shlex.quote(sys.executable)} -c '{code}'"
    done = subprocess.run(
        ["bash", "-c", command.format(slimformer=slimformer, base=base, artifact=artifact)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert word in done.stdout + done.stderr
    assert "unexpected" not in done.stderr
    assert "FATAL" not in done.stderr
    assert "Traceback" not in done.stderr


def test_what_follows_two_dashes_is_no_flag():
    done = runs.run("predict", "nowhere", "--", "--debug", "--trust-remote-code")
    done.refused("nowhere")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")],
)
def test_that_memory_ran_out_is_said_in_words(error, capsys):
    with pytest.raises(SystemExit) as ended:
        fail_unexpectedly(error, debug=False)
    assert ended.value.code == 1
    expected = "error: there is not enough memory for this; free some, or give less at a time\n"
    assert capsys.readouterr().err == expected


def test_a_folder_that_is_called_as_a_setting_is_no_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keep").mkdir()
    done = runs.run("route", "elastic", "--accuracy", "0.9", "--out", "keep", "--overwrite")
    done.refused("error: `keep` is no route, so it is not replaced")


def test_a_mistyped_command_lists_all_of_them():
    done = runs.run("finetun", "--model", "base")
    first, *others = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert first == "error: there is no command `finetun` (do you mean `finetune`?); there are:"
    assert [line.split()[0] for line in others] == [*METHODS, *COMMANDS]
    assert others[0].split(maxsplit=1)[1] == METHODS.help("finetune")
    escaped = runs.run(ESCAPES).err
    assert "\\x1b]0;owned" in escaped
    assert not CONTROL.search(escaped)
    assert runs.run("xyzzy").err.startswith("error: there is no command `xyzzy`; there are:\n")
