"""Sphinx configuration."""

import sys
from pathlib import Path

from slimformer import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "slimformer"
author = "the slimformer authors"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
]
html_theme = "furo"
html_title = f"slimformer {release}"
html_show_copyright = False  # the licence is in the repository
html_static_path = ["_static"]
html_css_files = ["slimformer.css"]
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
default_role = "code"
