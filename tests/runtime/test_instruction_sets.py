"""The kernels of each instruction set against the portable ones, bit by bit, also where this machine lacks the set.

`csrc/tests/agreement.cpp` compares them without Python; here it is compiled for this machine, with AVX-512 emulated by
SIMDe, and for 64-bit ARM, which QEMU runs.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "csrc"
COMPILER = os.environ.get("CXX", "c++")
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
SEED = "1"
CASES = "100"

pytestmark = pytest.mark.slow


def need(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def has_header(path):
    source = f"#if !__has_include(<{path}>)\n#error\n#endif\n"
    command = [COMPILER, "-E", "-x", "c++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def build(folder, **settings):
    need("cmake", settings.get("CMAKE_CXX_COMPILER", COMPILER))
    defined = {"BUILD_AGREEMENT": "ON", "CMAKE_CXX_FLAGS_RELEASE": "-O1", **settings}
    options = [f"-D{name}={value}" for name, value in defined.items()]
    for command in (["cmake", "-S", SOURCES, "-B", folder, *options], ["cmake", "--build", folder]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "agreement"


def compare(*command):
    """The sets that were compared, and a line with a checksum for each kernel."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *kernels = done.stdout.splitlines()
    assert len(kernels) == 9
    return first.removeprefix("compared:").split(), kernels


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return compare(build(tmp_path_factory.mktemp("here")), SEED, CASES)


def test_the_sets_of_this_machine_agree(here):
    if not here[0]:
        pytest.skip("this machine has the portable kernels alone")


def test_avx512_agrees_under_emulation(tmp_path, here):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs an x86 processor")
    if not has_header("simde/x86/avx512.h"):
        pytest.skip("needs SIMDe (libsimde-dev)")
    program = build(tmp_path, EMULATE_AVX512="ON")
    assert compare(program, SEED, CASES, "avx512vnni") == (["avx512vnni"], here[1])


def test_neon_agrees_under_emulation_and_has_the_bits_of_this_machine(tmp_path, here):
    need(CROSS_COMPILER, EMULATOR)
    program = build(
        tmp_path,
        CMAKE_SYSTEM_NAME="Linux",
        CMAKE_SYSTEM_PROCESSOR="aarch64",
        CMAKE_CXX_COMPILER=CROSS_COMPILER,
    )
    assert compare(EMULATOR, "-L", LIBRARIES, program, SEED, CASES) == (["neon"], here[1])
