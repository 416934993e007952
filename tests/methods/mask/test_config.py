"""Settings of masking: which blocks they mean, and which do not go together."""

from __future__ import annotations

import pytest

from slimformer.errors import ConfigError
from slimformer.methods.mask import MaskConfig


@pytest.mark.parametrize(
    ("settings", "count", "numbers"),
    [
        ({}, 12, [*range(2, 12)]),
        ({}, 6, [2, 3, 4, 5]),
        ({"blocks": "1-5"}, 6, [1, 2, 3, 4, 5]),
        ({"blocks": "0,3,5"}, 6, [0, 3, 5]),
        ({"blocks": "0-1, 4-"}, 6, [0, 1, 4, 5]),
        ({"top_down": 2}, 6, [4, 5]),
        ({"bottom_up": 3}, 6, [0, 1, 2]),
    ],
)
def test_blocks(settings, count, numbers):
    assert MaskConfig(**settings).block_numbers(count) == numbers


def test_matrices():
    assert MaskConfig(matrices="q, ffn-in").roles == ("query", "up", "gate")
    assert not MaskConfig(matrices="q").masks("pooler")
    assert MaskConfig().masks("pooler")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blocks": "two"}, r"`blocks` is `two`: give blocks counted from 0"),
        ({"blocks": "0,4-2"}, r"`blocks` is `0,4-2`: `4-2` runs backwards; give `2-4`"),
        ({"blocks": "1-2-3"}, r"`blocks` is `1-2-3`"),
        ({"matrices": "q,w"}, r"there is no matrix `w`; known: q, k, v, o, ffn-in, ffn-out, pooler, classifier"),
        ({"top_down": 2, "bottom_up": 2}, "`--top-down` and `--bottom-up` both"),
        ({"top_down": 2, "blocks": "1-"}, "`--blocks` and `--top-down`"),
        ({"anneal": True}, "`--anneal` needs `--structured` and `--sparsity`"),
        ({"sparsity": 0.5}, "give `--max-steps`"),
        ({"classifier": "masked", "matrices": "q"}, "leaves the classifier out"),
        ({"initial_sparsity": 0.0}, "`initial_sparsity` is `0.0`"),
        ({"sparsity": 1.0}, "`sparsity` is `1.0`"),
    ],
)
def test_settings_that_do_not_go_together(settings, said):
    with pytest.raises(ConfigError, match=said):
        MaskConfig.make(settings)
