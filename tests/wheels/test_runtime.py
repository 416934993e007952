"""The part of slimformer that is a distribution of its own: what it holds, and that it works without the rest."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import slimformer
from slimformer import distribution
from slimformer.runtime.native import is_built
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "wheels"))
try:
    import splitting
    import staging
    from cross import SIZES, Interpreter
finally:
    sys.path.pop(0)

PACKAGE = ROOT / "src" / "slimformer"
#: What slimformer-runtime may import beside itself and the standard library.
REQUIRED = {"numpy", "tokenizers"}
#: What is blocked where it is run here.
BLOCKED = ("torch", "transformers", "pydantic", "safetensors", "yaml", "huggingface_hub")
ALONE = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))
import pytest
options = ["--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null", "-q"]
sys.exit(pytest.main([*options, {str(Path(__file__).parent / "alone")!r}]))
"""


def imports(body):
    """The modules that are imported when a module is: not those for annotations, nor those of functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from imports([*node.body, *node.orelse])


def module_of(name):
    """The file that an imported name of slimformer lies in, relative to the package."""
    parts = name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        path = Path(*parts[:end])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if (PACKAGE / file).is_file():
                return file
    return Path("__init__.py")


def test_its_modules_import_no_others():
    sources = set(staging.sources())
    #: What is imported where all of slimformer is.
    whole = {Path("integrations/transformers.py"), Path("registry/__init__.py")}
    seen = set()
    for file in sorted(sources):
        for name in imports(ast.parse((PACKAGE / file).read_text()).body) if file.suffix == ".py" else ():
            top = name.partition(".")[0]
            if top != "slimformer":
                assert top in REQUIRED or top in sys.stdlib_module_names, f"{file} imports {name}"
                seen.add(top)
            elif file != Path("__init__.py") or module_of(name) not in whole:
                assert module_of(name) in sources, f"{file} imports {name}"
    assert "numpy" in seen


def test_modules_that_are_missing_are_named(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.slimformer-runtime]\nsources = ["nothing.py"]')
    monkeypatch.setattr(staging, "PROJECT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"`nothing.py` .* names nothing"):
        staging.sources()


def test_both_projects_have_one_version_and_one_build():
    whole, runtime = tomllib.loads((ROOT / "pyproject.toml").read_text()), staging.project()
    assert whole["project"]["version"] == runtime["project"]["version"] == slimformer.__version__
    assert whole["build-system"] == runtime["build-system"]
    for key in ("requires-python", "license"):
        assert whole["project"][key] == runtime["project"][key]
    named = {each.partition(">")[0] for each in runtime["project"]["dependencies"]}
    assert named == REQUIRED


@pytest.mark.slow
@pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
def test_it_answers_without_the_rest(tmp_path):
    folder = staging.stage(tmp_path / "staged")
    for kernels in (PACKAGE / "runtime").glob("_native*"):
        shutil.copy(kernels, folder / "src" / "slimformer" / "runtime")
    # Without `site`, which would put the package in the place it is installed from before all others.
    paths = os.pathsep.join((str(folder / "src"), sysconfig.get_paths()["platlib"]))
    command, environment = [sys.executable, "-S", "-c", ALONE], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_either_of_two_owners_is_refused(tmp_path):
    distribution.check_installed(tmp_path)
    for name in (distribution.BUNDLED, distribution.RUNTIME):
        distribution.check_installed(tmp_path)
        (tmp_path / name).touch()
    with pytest.raises(ImportError, match="pip uninstall slimformer slimformer-runtime"):
        distribution.check_installed(tmp_path)
    assert (PACKAGE / distribution.BUNDLED).is_file()
    assert staging.MARK == distribution.RUNTIME
    assert f"slimformer/{distribution.BUNDLED}" == splitting.BUNDLED


def wheel(path, files, metadata):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"slimformer/{name}", content)
        info = "-".join(path.name.split("-")[:2]) + ".dist-info"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path):
    """Wheels with the files of both distributions, the first with all."""
    mine = {name.as_posix(): (PACKAGE / name).read_bytes() for name in staging.sources()}
    rest = {name: (PACKAGE / name).read_bytes() for name in ("BUNDLED", "config.py", "cli/__init__.py")}
    metadata = "Name: slimformer\nRequires-Dist: torch>=2.6\n\nText\n"
    runtime = {**mine, "RUNTIME": b"", "runtime/_native.abi3.so": b"kernels"}
    (tmp_path / "out").mkdir()
    return (
        wheel(tmp_path / "slimformer-0.1.0-py3-none-any.whl", {**mine, **rest}, metadata),
        wheel(tmp_path / "slimformer_runtime-0.1.0-cp312-abi3-linux_x86_64.whl", runtime, ""),
        tmp_path / "out",
    )


def test_the_wheel_of_a_release_shares_no_file(wheels):
    whole, runtime, out = wheels
    with zipfile.ZipFile(splitting.split(whole, runtime, out)) as made, zipfile.ZipFile(runtime) as other:
        own = {name for name in made.namelist() if not name.startswith("slimformer-")}
        assert own == {"slimformer/config.py", "slimformer/cli/__init__.py"}
        assert not own & set(other.namelist())
        metadata = made.read("slimformer-0.1.0.dist-info/METADATA").decode()
        assert metadata.splitlines()[1:3] == ["Requires-Dist: slimformer-runtime==0.1.0", "Requires-Dist: torch>=2.6"]
        assert metadata.endswith("\n\nText\n")
        rows = list(csv.reader(io.StringIO(made.read("slimformer-0.1.0.dist-info/RECORD").decode())))
        assert {row[0] for row in rows} == set(made.namelist())
        for name, digest, size in rows:
            if not name.endswith("RECORD"):
                sha256 = base64.urlsafe_b64encode(hashlib.sha256(made.read(name)).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={sha256}", len(made.read(name)))


def test_wheels_of_different_sources_are_refused(wheels):
    whole, runtime, out = wheels
    with zipfile.ZipFile(runtime, "a") as archive:
        archive.writestr("slimformer/new.py", "")
    with pytest.raises(ValueError, match=r"`slimformer/new.py` .* is not the one"):
        splitting.split(whole, runtime, out)


@pytest.fixture
def interpreter(tmp_path):
    """One with headers of 64-bit Linux."""
    include = tmp_path / "include"
    include.mkdir()
    (include / "Python.h").touch()
    pyconfig = "".join(f"#define {name} {size}\n" for name, size in SIZES.items())
    (include / "pyconfig.h").write_text(f"{pyconfig}/* #undef WORDS_BIGENDIAN */\n#define HAVE_FORK 1\n")
    return Interpreter("python", (3, 13), include, include / "pyconfig.h")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("#define SIZEOF_LONG 4", "'SIZEOF_LONG': '4'"),
        ("#define Py_GIL_DISABLED 1", "'Py_GIL_DISABLED': '1'"),
        ("#define WORDS_BIGENDIAN 1", "'WORDS_BIGENDIAN': '1'"),
    ],
)
def test_headers_that_another_machine_cannot_use_are_refused(interpreter, tmp_path, line, seen):
    assert (interpreter.copy_headers(tmp_path / "copy") / "Python.h").is_file()
    interpreter.pyconfig.write_text(f"{interpreter.pyconfig.read_text()}{line}\n")
    with pytest.raises(SystemExit, match=seen):
        interpreter.copy_headers(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_settings_of_cibuildwheel_are_ones_it_knows():
    options = pytest.importorskip("cibuildwheel.options", reason="needs cibuildwheel")
    from cibuildwheel.options import CommandLineArguments

    arguments = CommandLineArguments.defaults()
    arguments.package_dir = ROOT / "wheels" / "runtime"
    for platform in ("linux", "macos", "windows"):
        arguments.platform = platform
        read = options.compute_options(platform=platform, command_line_arguments=arguments, env={})
        assert read.globals.build_selector("cp311-manylinux_x86_64")
        assert not read.globals.build_selector("cp313-manylinux_x86_64")
