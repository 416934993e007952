"""What counts as a difference and what does not."""

from __future__ import annotations

import pytest
import torch

from slimformer.errors import ArtifactError
from slimformer.integrations.onnx.comparing import difference

MASK = {"attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}


def test_values_by_hand():
    expected = {"logits": torch.tensor([[1.0, 3.0], [4.0, 2.0]])}
    found = {"logits": torch.tensor([[1.0, 3.0], [1.0, 2.0]])}
    measured = difference([MASK], [expected], [found])
    assert (measured.largest, measured.mean, measured.relative) == (3.0, 0.75, 0.75)
    assert (measured.agreement, measured.examples) == (0.5, 2)


def test_places_of_padding_do_not_count():
    expected = {"logits": torch.zeros(2, 3, 4)}
    found = {"logits": torch.zeros(2, 3, 4)}
    found["logits"][0, 2], found["logits"][1, 1] = torch.nan, 7
    assert difference([MASK], [expected], [found]).largest == 0
    found["logits"][1, 0, 3] = 0.5
    measured = difference([MASK], [expected], [found])
    assert (measured.largest, measured.agreement) == (0.5, 2 / 3)


def test_an_end_of_a_span_is_one_decision():
    expected = {"start_logits": torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])}
    found = {"start_logits": torch.tensor([[2.0, 1.0, -9.0], [3.0, -9.0, 9.0]])}
    measured = difference([MASK], [expected], [found])
    assert (measured.largest, measured.agreement) == (1.0, 0.5)


@pytest.mark.parametrize("same", [{"pooler_output": torch.ones(2, 4)}, {"logits": torch.ones(2, 1)}])
def test_hidden_states_and_single_scores_decide_nothing(same):
    assert difference([MASK], [same], [same]).agreement is None


def test_no_number_is_an_error():
    with pytest.raises(ArtifactError, match="nan or infinity in `logits`"):
        difference([MASK], [{"logits": torch.ones(2, 2)}], [{"logits": torch.full((2, 2), torch.nan)}])
