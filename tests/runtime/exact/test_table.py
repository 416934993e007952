"""The table of families and formats in the docs, made by running a model of each."""

from __future__ import annotations

import numpy as np
import pytest

from slimformer import Anatomy
from slimformer.inference.door import look_up
from slimformer.inference.native import open_floats
from slimformer.operators import coverage
from slimformer.runtime.architecture import ARCHITECTURES
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built
from slimformer.sizes import extract, make_elastic
from slimformer.views import MaskView, attach, snapshot, uniform_scores
from tests import zoo
from tests.conftest import ROOT
from tests.elastic import NESTINGS
from tests.parameters import slow
from tests.runtime.exact.encoder import ExactEncoder
from tests.runtime.test_encoder import images, model_of, same_bits, save, sequences

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

FORMATS = ("ternary", "int8", "float32", "bfloat16", "masked", "elastic")
#: One that the engine does not run stands in the table too.
OTHER = "deberta-v2"


def masked(family):
    model = model_of(family, "Model")
    for block in Anatomy.of(model).blocks:
        for matrix in block.matrices.values():
            attach(matrix, MaskView(uniform_scores(matrix.shape, 0.3)))
    return model


def elastic(family):
    model = model_of(family, "Model")
    make_elastic(model, NESTINGS["neurons"])
    return extract(model, "S")


def opened(family, format_, folder):
    """An encoder on the engine, with how many packed weights operators would make floats of; `folder` has the same."""
    if format_ in ("masked", "elastic"):
        model = masked(family) if format_ == "masked" else elastic(family)
        snapshot(model).save_pretrained(folder)
        return lambda: open_floats(look_up(folder), model, None).encoder, 0
    if format_ == "bfloat16":
        model_of(family, "Model").bfloat16().save_pretrained(folder)
        return lambda: NativeEncoder(folder), 0
    model = save(folder, family, "Model", floats=format_ == "float32", view=format_)
    return lambda: NativeEncoder(folder), len(coverage(model).expanded)


def has_the_bits(encoder, family, folder):
    reference = ExactEncoder(folder)
    if family in zoo.IMAGES:
        expected = np.concatenate([reference.run_image(each) for each in images(2)])
        return same_bits(encoder.run_images(images(2)), expected)
    expected = np.concatenate([reference.run(each) for each in sequences((7, 20))])
    return same_bits(encoder.run(sequences((7, 20))), expected)


def row_of(family, folder):
    """What the table says of a family."""
    cells, fallbacks = [], 0
    for format_ in FORMATS:
        open_, expanded = opened(family, format_, folder / format_)
        fallbacks += expanded
        if family in ARCHITECTURES:
            assert has_the_bits(open_(), family, folder / format_), (family, format_)
            cells.append("yes")
        else:
            with pytest.raises(EngineError, match=f"does not run `{family}`"):
                open_()
            cells.append("no")
            fallbacks += 1
    return f"| `{family}` | {' | '.join(cells)} | {fallbacks} |"


@pytest.fixture(scope="module")
def table():
    """Lines of the table that the docs have."""
    lines = (ROOT / "docs/guides/engine.md").read_text().splitlines()
    first = lines.index(f"| | {' | '.join(FORMATS)} | fallbacks |")
    return lines[first + 2 : first + 2 + len(ARCHITECTURES) + 1]


@pytest.mark.parametrize("family", slow([*ARCHITECTURES, OTHER], but={"bert", OTHER}))
def test_the_docs_have_what_runs_of_a_family(tmp_path, table, family):
    """A cell says yes where the answers of the engine have the bits of the reference."""
    made = row_of(family, tmp_path)
    assert made in table
    assert made.endswith("| 0 |") == (family != OTHER)
