from __future__ import annotations

import subprocess
import sys

import pytest

from slimformer.errors import RegistryError
from slimformer.registry import Registry


@pytest.fixture
def shapes() -> Registry[type]:
    return Registry(
        "shape", {"ordered": ("collections:OrderedDict", "Keeps an order."), "chain": ("collections:ChainMap", "")}
    )


def test_names_and_help_import_nothing_of_what_they_name():
    code = (
        "import sys; from slimformer.registry import Registry;"
        "known = Registry('thing', {'odd': ('not_there:at_all', 'An odd thing.')});"
        "print(list(known), known.help('odd'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['odd'] An odd thing. False\n"


def test_an_entry_is_imported_when_it_is_asked_for(shapes):
    from collections import OrderedDict

    assert shapes.get("ordered") is OrderedDict


def test_an_unknown_name_is_refused_with_the_nearest_one(shapes):
    with pytest.raises(RegistryError, match=r"no shape `order` \(do you mean `ordered`\?\); known: ordered, chain"):
        shapes.get("order")


def test_what_is_added_is_found_and_can_be_removed(shapes):
    shapes.add("plain", dict, "A plain one.")
    assert "plain" in shapes
    assert shapes.get("plain") is dict
    assert shapes.help("plain") == "A plain one."
    shapes.remove("plain")
    assert list(shapes) == ["ordered", "chain"]


@pytest.mark.parametrize("name", ["ordered", "plain"])
def test_a_name_is_given_once(shapes, name):
    shapes.add("plain", dict)
    with pytest.raises(RegistryError, match="already"):
        shapes.add(name, dict)


def test_only_what_was_added_is_removed(shapes):
    with pytest.raises(RegistryError, match="only those added"):
        shapes.remove("ordered")


def test_packages_register_through_entry_points(tmp_path, monkeypatch):
    info = tmp_path / "outsider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slimformer.shapes]\nround = outsider:Round\nchain = outsider:Other\n")
    (tmp_path / "outsider.py").write_text('class Round:\n    """A round shape."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    shapes = Registry("shape", {"chain": ("collections:ChainMap", "")})
    assert list(shapes) == ["chain", "round"]
    assert shapes.get("round").__name__ == "Round"
    assert shapes.help("round") == "From the package `outsider`."
    assert shapes.get("chain").__name__ == "ChainMap"  # a name of slimformer's own is not taken over


def test_a_broken_package_is_named_and_does_no_other_harm(tmp_path, monkeypatch):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slimformer.shapes]\nodd = broken_module:Odd\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shapes = Registry("shape", {"chain": ("collections:ChainMap", "A chain.")})
    assert [(name, shapes.help(name)) for name in shapes] == [
        ("chain", "A chain."),
        ("odd", "From the package `broken`."),
    ]
    with pytest.raises(
        RegistryError, match="the shape `odd` of another package cannot be loaded from `broken_module:Odd`"
    ):
        shapes.get("odd")
