"""Each sub-layer of the engine against the same in torch with weights and activations rounded in floats.

What the engine computes inside a forward is what the reference does, whose answers have its bits after every block. So
each sub-layer of torch is given what the reference had before it, and compared with what it had behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer import Anatomy
from slimformer.runtime.native import is_built
from slimformer.views.rounding import in_floats
from tests import zoo
from tests.parameters import slow
from tests.runtime.exact.encoder import ExactEncoder
from tests.runtime.test_encoder import images, save, sequences

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

CLOSE = 1e-4
#: What the sub-layers of a block end in, and what of the reference is there.
ENDS = ("attention", "projection and norm", "activation", "block")


@dataclass
class Comparison:
    """Puts what the reference had in the place of what torch has, and keeps how far apart the two were.

    Args:
        reference: After a forward.
        heads: Heads of a block.
    """

    reference: ExactEncoder
    heads: int
    apart: dict[str, list[float]] = field(default_factory=lambda: {end: [] for end in ENDS})

    def compare(self, end, found, expected, parts=1):
        pairs = zip(np.split(found, parts, axis=-1), np.split(expected, parts, axis=-1), strict=True)
        self.apart[end] += [float(np.abs(one - two).max() / np.abs(two).max()) for one, two in pairs]

    def before(self, end, expected, parts=1):
        """A hook on what reads the end of a sub-layer."""

        def hook(module, inputs):
            self.compare(end, inputs[0].reshape(expected.shape).numpy(), expected, parts)
            return (torch.from_numpy(expected).reshape(inputs[0].shape), *inputs[1:])

        return hook

    def watch(self, number, block):
        names, states = self.reference.names, self.reference.hidden_states
        at = f"{self.reference.base}{names.blocks}.{number}"
        given = torch.from_numpy(states[number])[None]
        block.module.register_forward_pre_hook(lambda module, inputs: (given, *inputs[1:]))
        ends = ((names.output, block.output), (names.up, block.up), (names.down, block.down))
        for end, (name, matrix) in zip(ENDS, ends, strict=False):
            parts = self.heads if end == "attention" else 1
            matrix.module.register_forward_pre_hook(self.before(end, self.reference.inputs[f"{at}.{name}"], parts))

        def last(module, inputs, outputs):
            hidden = outputs[0] if isinstance(outputs, tuple) else outputs
            self.compare(ENDS[-1], hidden.reshape(states[number + 1].shape).numpy(), states[number + 1])

        block.module.register_forward_hook(last)


@pytest.mark.parametrize("view", ["ternary", "int8"])
@pytest.mark.parametrize(
    "family", slow(["bert", "distilbert", "mpnet", "modernbert", "vit"], but={"bert", "modernbert"})
)
def test_sub_layers_agree_with_floats_on_the_inputs_they_have(tmp_path, family, view):
    save(tmp_path, family, "Model", view=view)
    apart = {end: [] for end in ENDS}
    for asked in images(4) if family in zoo.IMAGES else sequences((9, 33, 17, 5)):
        reference = ExactEncoder(tmp_path)
        model = hf.AutoModel.from_pretrained(tmp_path).eval()
        anatomy = Anatomy.of(model)
        if family in zoo.IMAGES:
            reference.run_image(asked)
            inputs = {"pixel_values": torch.from_numpy(asked)[None]}
        else:
            reference.run(asked)
            inputs = {"input_ids": torch.tensor([asked])}
        comparison = Comparison(reference, 4)
        for number, block in enumerate(anatomy.blocks):
            comparison.watch(number, block)
        with torch.no_grad(), in_floats(model):
            model(**inputs)
        for end in ENDS:
            apart[end] += comparison.apart[end]
    blocks = 4 * len(anatomy.blocks)
    assert [len(apart[end]) for end in ENDS] == [4 * blocks, blocks, blocks, blocks]
    for end in ENDS[1:]:  # what these round is what torch rounds
        assert max(apart[end]) <= CLOSE, end
    # Queries, keys, values and probabilities are rounded after sums of floats, whose last bit may decide of a step.
    assert np.mean(np.array(apart["attention"]) <= CLOSE) >= 0.8
    assert max(apart["attention"]) <= 0.05
