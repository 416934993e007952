"""Formulas as MathML, written while the pages are built: browsers show it without scripts, fonts or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def to_mathml(latex: str, display: str) -> str:
    """The MathML of a formula.

    Args:
        latex: The formula, as LaTeX.
        display: `inline` or `block`.

    Raises:
        ExtensionError: The converter does not know a command; it would show up as text.
    """
    mathml: str = convert(latex, display=display)
    if "\\" in mathml or "<mi>&</mi>" in mathml:
        raise ExtensionError(f"the formula `{latex}` has a command without MathML; write it another way")
    return mathml


def visit_math(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a line."""
    writer.body.append(to_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    writer.body.append(f'<div class="formula">{to_mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer as `mathml`."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
