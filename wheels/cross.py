"""Compiling for Linux on x86-64 and ARM with Zig, against a glibc that is old enough, whatever this machine is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The glibc that symbols are taken of: that of manylinux2014, as old as those of NumPy and tokenizers ask for.
GLIBC = (2, 17)
ARCHITECTURES = ("x86_64", "aarch64")
#: What the headers of Python ask of pyconfig.h that two machines could differ in, and what 64-bit Linux says.
SIZES = {
    "SIZEOF_INT": 4,
    "SIZEOF_LONG": 8,
    "SIZEOF_LONG_LONG": 8,
    "SIZEOF_SIZE_T": 8,
    "SIZEOF_VOID_P": 8,
    "SIZEOF_WCHAR_T": 4,
}
#: What would make another interpreter of it than those that users have.
UNUSUAL = ("WORDS_BIGENDIAN", "Py_DEBUG", "Py_TRACE_REFS", "Py_GIL_DISABLED")
#: Asks an interpreter about itself.
QUESTION = """
import json, sys, sysconfig
names = ("MULTIARCH", "py_version_nodot")
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "include": sysconfig.get_paths()["include"],
    "pyconfig": sysconfig.get_config_h_filename(),
    "multiarch": sysconfig.get_config_var("MULTIARCH") or "",
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython that wheels are built for.

    Args:
        program: Its path.
        version: Such as (3, 11).
        include: Its headers.
        pyconfig: The header that was made for this machine.
    """

    program: str
    version: tuple[int, int]
    include: Path
    pyconfig: Path

    @classmethod
    def ask(cls, program: str) -> Interpreter:
        """What an interpreter says of itself."""
        found = shutil.which(program)
        if found is None:
            raise SystemExit(f"there is no `{program}`; give the path of a CPython of 3.11 or later")
        said: dict[str, Any] = json.loads(subprocess.check_output([found, "-c", QUESTION], text=True))
        include, pyconfig = Path(said["include"]), Path(said["pyconfig"])
        # Debian's pyconfig.h only includes the one of the machine it is compiled for.
        own = include.parent / said["multiarch"] / include.name / "pyconfig.h"
        return cls(found, (said["version"][0], said["version"][1]), include, own if own.is_file() else pyconfig)

    def copy_headers(self, folder: Path) -> Path:
        """Copy the headers to a folder that is not there yet, checked to be the same for another machine.

        Those of a version differ from machine to machine in pyconfig.h alone, and what they take of that is `SIZES`
        and `UNUSUAL`.
        """
        if not (self.include / "Python.h").is_file():
            raise SystemExit(f"`{self.program}` has no headers in `{self.include}`; install them (python3-dev)")
        text = self.pyconfig.read_text(encoding="utf-8")
        lines = [line.split() for line in text.splitlines() if line.startswith("#define ")]
        defined = {words[1]: words[2] for words in lines if len(words) > 2}
        wrong = {name: defined.get(name) for name, size in SIZES.items() if defined.get(name) != str(size)}
        wrong |= {name: defined[name] for name in UNUSUAL if defined.get(name, "0") != "0"}
        if wrong:
            raise SystemExit(f"`{self.pyconfig}` has {wrong}, which is no usual 64-bit Linux; give another interpreter")
        shutil.copytree(self.include, folder)
        shutil.copy(self.pyconfig, folder / "pyconfig.h")
        return folder


def environment(folder: Path, interpreter: Interpreter, architecture: str) -> dict[str, str]:
    """Variables under which pip compiles for an architecture, with what they name in a folder that is not there yet."""
    folder.mkdir(parents=True)
    headers = interpreter.copy_headers(folder / "include")
    target = f"-target {architecture}-linux-gnu.{'.'.join(map(str, GLIBC))}"
    for name, command in (("c++", f"c++ {target}"), ("ar", "ar"), ("ranlib", "ranlib")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    defined = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": architecture,
        "CMAKE_CXX_COMPILER": folder / "c++",
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
        "Python_INCLUDE_DIR": headers,
    }
    major, minor = interpreter.version
    return {
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in defined.items()),
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{major}{minor}-{architecture}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }
