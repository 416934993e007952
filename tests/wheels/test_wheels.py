"""The wheels that `make wheels` has put into `dist`: what is in them, and that they answer where nothing else is.

Beside the interpreter of the tests, those of `SLIMFORMER_PYTHONS` are asked, and Pythons for 64-bit ARM under QEMU:
`SLIMFORMER_ARM_ROOTS` names folders into which Debian's python3 of arm64 is unpacked. Both are lists like `PATH`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

DIST = Path(os.environ.get("SLIMFORMER_WHEELS", ROOT / "dist"))
ALONE = Path(__file__).parent / "alone"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
#: What is installed beside the wheel: what it requires, and pytest with what that needs; nothing else can help.
BESIDE = ("numpy", "tokenizers", "pytest", "iniconfig", "packaging", "pluggy", "pygments")
PYTEST = ("-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "-q", str(ALONE))
#: The libraries of glibc that kernels may need.
GLIBC = {"libc.so", "libdl.so", "libm.so", "libpthread.so"}
#: Bytes of a wheel of slimformer-runtime at most.
MOST = 2_000_000

RUNTIMES = sorted(DIST.glob("slimformer_runtime-*.whl"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RUNTIMES, reason=f"needs wheels in {DIST}; run: make wheels"),
]


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def paths(variable):
    return [Path(each) for each in os.environ.get(variable, "").split(os.pathsep) if each]


def wheel_for(version, architecture):
    """The wheel for a CPython on Linux; that of the stable ABI serves every one from 3.12 on."""
    tag = "cp311-cp311" if tuple(version) == (3, 11) else "cp312-abi3"
    found = [each for each in RUNTIMES if f"-{tag}-" in each.name and each.stem.endswith(architecture)]
    if not found:
        pytest.skip(f"needs a wheel for {tag} and {architecture} in {DIST}")
    return found[0]


def names(path):
    with zipfile.ZipFile(path) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}


@pytest.mark.parametrize("wheel", RUNTIMES, ids=lambda each: each.stem)
def test_kernels_need_nothing_but_an_old_glibc(wheel):
    if find_spec("auditwheel") is None:
        pytest.skip("needs auditwheel")
    said = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    architecture = "aarch64" if "aarch64" in wheel.name else "x86_64"
    assert f'consistent with the following platform tag: "manylinux_2_17_{architecture}"' in said
    assert set(re.findall(r"lib\w+\.so", said)) <= GLIBC
    assert sum("_native" in name for name in names(wheel)) == 1
    assert wheel.stat().st_size < MOST


def test_the_wheel_of_slimformer_holds_the_rest():
    (rest,) = DIST.glob("slimformer-*.whl")
    listed = run("git", "-C", ROOT, "ls-files", "src/slimformer")
    whole = {name.removeprefix("src/") for name in listed.split()} - {"slimformer/BUNDLED"}
    for wheel in RUNTIMES:
        kernels = {name for name in names(wheel) if "_native" in name} | {"slimformer/RUNTIME"}
        assert not names(wheel) & names(rest)
        assert (names(wheel) | names(rest)) - kernels == whole


@pytest.mark.parametrize("python", [Path(sys.executable), *paths("SLIMFORMER_PYTHONS")], ids=lambda each: each.name)
def test_it_answers_in_an_empty_environment(python, tmp_path):
    wheel = wheel_for(version_of(python), os.uname().machine)
    run(python, "-m", "venv", "--without-pip", tmp_path / "empty")
    empty = tmp_path / "empty" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", empty, "install", "--quiet", "--no-deps", wheel, *BESIDE)
    answered(run(empty, *PYTEST, PATH="/nowhere"))  # no compiler either


def version_of(*command):
    code = "import json, sys; print(json.dumps(sys.version_info[:2]))"
    return json.loads(run(*command, "-c", code))


def answered(said):
    assert "passed" in said
    assert "skipped" not in said


@pytest.mark.parametrize("root", paths("SLIMFORMER_ARM_ROOTS") or [None], ids=lambda each: each and each.parent.name)
def test_it_answers_on_arm_under_emulation(root, tmp_path):
    emulator = next(filter(None, map(shutil.which, EMULATORS)), None)
    if root is None or emulator is None:
        pytest.skip(f"needs {EMULATORS[0]} and SLIMFORMER_ARM_ROOTS, folders with Debian's Python of arm64")
    (python,) = [each for each in (root / "usr" / "bin").glob("python3.*") if each.suffix[1:].isdigit()]
    emulated = [emulator, "-L", root, python]
    version = version_of(*emulated)
    dotted = ".".join(map(str, version))
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28)]
    target = ["--target", tmp_path, "--only-binary=:all:", f"--python-version={dotted}", "--implementation=cp"]
    beside = [wheel_for(version, "aarch64"), *BESIDE]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *target, *platforms, *beside)
    again = f"{emulator} -L {root}"  # what a process of the tests starts is emulated, too
    answered(run(*emulated, *PYTEST, PYTHONPATH=str(tmp_path), SLIMFORMER_EMULATOR=again))
