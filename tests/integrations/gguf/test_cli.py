"""`slimformer export --out NAME.gguf`."""

from __future__ import annotations

import pytest
import transformers as hf

from slimformer.artifact import Step, save
from tests import runs
from tests.export import making as quantizing
from tests.integrations.gguf import making

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A ternary encoder, 64 wide with 256 neurons."""
    processor = making.word_piece()
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 1}
    model = quantizing.quantized(making.model("bert", hf.BertModel, processor, **sizes), weights="ternary")
    folder = tmp_path_factory.mktemp("artifact") / "model"
    save(folder, model, step=Step(method="quantize"), processor=processor)
    return folder


def test_lines_and_json(artifact, tmp_path):
    done = runs.run("export", artifact, "--out", tmp_path / "model.gguf")
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.startswith(f"{artifact} exported: BertModel as bert, packed (14 F32, 6 Q2_0, 1 TQ2_0), ")
    assert first.endswith(f"KiB, saved in {tmp_path / 'model.gguf'}")
    assert second.startswith("weights in the file are at most 0.0")
    assert runs.listing(tmp_path) == {"model.gguf"}
    done = runs.run("export", artifact, "--out", tmp_path / "float.gguf", "--numbers", "float", "--json")
    assert (done.json["model"], done.json["types"]) == (str(artifact), {"F32": 21})
    assert (done.json["rounding"], done.json["rounded"]) == (0, None)
    done = runs.run("export", artifact, "--out", tmp_path / "float.gguf", "--numbers", "float", "--overwrite")
    assert done.out.splitlines()[1] == "every weight is in the file as the model has it"


def test_refused(artifact, tmp_path):
    out = ["--out", tmp_path / "model.gguf"]
    runs.run("export", artifact, *out, "--numbers", "tq2_0").refused("is 64 wide, and a block of TQ2_0 is 256 weights")
    runs.run("export", artifact, *out, "--length", "8").refused("`--length` is for an export to ONNX", code=2)
    runs.run("export", artifact, *out, "--data", tmp_path).refused("`--data` is for an export to ONNX", code=2)
    runs.run("export", artifact, *out, "--max-length", "8").refused("`--max-length` is for an export to ONNX", code=2)
    runs.run("export", artifact, *out, "--push-to-hub", "me/it").refused("`--push-to-hub` is for an export", code=2)
    runs.run("export", artifact, "--out", tmp_path / "onnx", "--numbers", "q2_0").refused("is for a GGUF file", code=2)
    assert runs.listing(tmp_path) == set()
