"""Elastic decoders as folders, for tests of sizes and drafts on the engine."""

from __future__ import annotations

import torch
import transformers as hf

import slimformer
from slimformer.artifact.manifest import Step
from slimformer.artifact.storage.elastic import ElasticStorage, PackedElasticStorage
from slimformer.sizes import bake_size, make_elastic, make_plain, name_sizes
from slimformer.sizes.table import SizesRecord
from tests import zoo
from tests.artifact.storage.test_packed import quantized

STEP = Step(method="elastic", seed=0)
#: Parts of 64 neurons of which one is no multiple of 16.
SHARES = (0.25, 0.55, 1.0)


def elastic_folder(
    folder, family="llama", numbers=None, dtype=None, shares=SHARES, heads=None, processor=None, **settings
):
    """An elastic decoder of random weights, in floats or packed, whose sizes disagree."""
    torch.manual_seed(0)
    model = zoo.enliven(hf.AutoModelForCausalLM.from_config(zoo.CONFIGS[family](**settings))).eval()
    if numbers is not None:
        quantized(model, **numbers)
        storage = PackedElasticStorage(SizesRecord.of(make_elastic(model, name_sizes(shares))))
        bake_size(model)
    else:
        if dtype is not None:
            model.to(dtype)
        storage = ElasticStorage(SizesRecord.of(make_elastic(model, name_sizes(shares, heads))))
        make_plain(model)
    slimformer.save(folder, model, step=STEP, storage=storage, processor=processor)
    return folder
