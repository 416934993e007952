"""The kernels of each instruction set against the portable ones, bit by bit, also where this machine lacks the set.

`csrc/tests/agreement.cpp` compares them without Python; here it is compiled for this machine, with AVX-512 emulated by
SIMDe, and for 64-bit ARM, which QEMU runs. Beside it, `allocations.cpp` counts what warm forwards allocate. No compiler
may warn of anything.
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
#: Other kernels are compiled in less time than those that are installed.
QUICK = {"CMAKE_CXX_FLAGS_RELEASE": "-O1"}

pytestmark = pytest.mark.slow


def need(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def has_header(path):
    source = f"#if !__has_include(<{path}>)\n#error\n#endif\n"
    command = [COMPILER, "-E", "-x", "c++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def run(*command):
    """What a command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder, *programs, **settings):
    """Compile some programs, where a warning is an error."""
    need("cmake", settings.get("CMAKE_CXX_COMPILER", COMPILER))
    defined = {"BUILD_AGREEMENT": "ON", "CMAKE_CXX_FLAGS": "-Werror", **settings}
    run("cmake", "-S", SOURCES, "-B", folder, *(f"-D{name}={value}" for name, value in defined.items()))
    run("cmake", "--build", folder, "--target", *programs)
    return folder


def compare(*command):
    """The sets that were compared, and a line with a checksum for each kernel."""
    first, *kernels = run(*command).splitlines()
    assert len(kernels) == 9
    return first.removeprefix("compared:").split(), kernels


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Those of this machine, compiled as they are installed."""
    return build(tmp_path_factory.mktemp("here"), "agreement", "allocations")


@pytest.fixture(scope="module")
def here(programs):
    return compare(programs / "agreement", SEED, CASES)


def test_warm_forwards_allocate_nothing(programs):
    lines = run(programs / "allocations").splitlines()
    assert len(lines) == 20  # four kinds of weights in three encoders, one with tasks, and a decoder
    assert all("nothing allocated" in line for line in lines)


def test_clang_warns_of_nothing(tmp_path):
    build(tmp_path, "agreement", "allocations", CMAKE_CXX_COMPILER="clang++", **QUICK)


def test_the_sets_of_this_machine_agree(here):
    if not here[0]:
        pytest.skip("this machine has the portable kernels alone")


def test_avx512_agrees_under_emulation(tmp_path, here):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs an x86 processor")
    if not has_header("simde/x86/avx512.h"):
        pytest.skip("needs SIMDe (libsimde-dev)")
    program = build(tmp_path, "agreement", EMULATE_AVX512="ON", **QUICK) / "agreement"
    assert compare(program, SEED, CASES, "avx512vnni") == (["avx512vnni"], here[1])


def test_neon_agrees_under_emulation_and_has_the_bits_of_this_machine(tmp_path, here):
    need(CROSS_COMPILER, EMULATOR)
    folder = build(
        tmp_path,
        "agreement",
        CMAKE_SYSTEM_NAME="Linux",
        CMAKE_SYSTEM_PROCESSOR="aarch64",
        CMAKE_CXX_COMPILER=CROSS_COMPILER,
        **QUICK,
    )
    assert compare(EMULATOR, "-L", LIBRARIES, folder / "agreement", SEED, CASES) == (["neon"], here[1])
