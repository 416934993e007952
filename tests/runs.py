"""Running commands inside the test process, and small bases and data for them."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers as hf

from slimformer import models
from slimformer.artifact import Step, save
from slimformer.artifact.storage.elastic import ElasticStorage
from slimformer.cli import main
from slimformer.sizes import make_elastic, make_plain
from slimformer.sizes.table import SizesRecord
from tests import corpus, zoo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
#: Enough of a run to see that everything is in its place.
QUICK = {"--max-steps": 2, "--batch-size": 8, "--lr": 1e-3}


@dataclass(frozen=True)
class Done:
    """What a command wrote and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which has to be one JSON object and nothing else."""
        assert self.code == 0, self.err
        result = json.loads(self.out)
        assert isinstance(result, dict)
        return result

    def refused(self, *words: str, code: int = 1) -> None:
        """Check that the command failed with one line that says why, and nothing else."""
        assert self.code == code, (self.code, self.err)
        assert self.out == ""
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        assert "unexpected" not in self.err
        for word in words:
            assert word in self.err


def in_a_process(*arguments: object) -> list[str]:
    """The command line that runs a command in a process of its own."""
    return [sys.executable, "-c", "from slimformer.cli import main; main()", *map(str, arguments)]


def run(*arguments: object) -> Done:
    """Run a command as the shell would, but in this process, which has everything loaded already."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def finetune(model: object, task: str, data: object, out: object, *more: object) -> Done:
    quick = [part for flag, value in QUICK.items() if flag not in more for part in (flag, value)]
    return run("finetune", "--model", model, "--task", task, "--data", data, "--out", out, *quick, *more)


def reader(folder: Path) -> Path:
    """A small random BERT that reads as MiniLM does, for real texts."""
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(**SMALL, vocab_size=30522, max_position_embeddings=512)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{models.resolve('minilm')}/{name}", folder)
    return folder


def viewer(folder: Path) -> Path:
    """A small random ViT with its image processor."""
    torch.manual_seed(0)
    hf.ViTModel(hf.ViTConfig(**SMALL, image_size=28, patch_size=7)).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def decoder(folder: Path) -> Path:
    """A small random Llama with the tokenizer of the generated texts."""
    torch.manual_seed(0)
    sizes = {**SMALL, "num_key_value_heads": 2, "vocab_size": 5 + len(corpus.WORDS), "max_position_embeddings": 64}
    hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, bos_token_id=2, eos_token_id=3)).save_pretrained(folder)
    corpus.tokenizer().save_pretrained(folder)
    return folder


def elastic_decoder(folder: Path) -> Path:
    """The same as an artifact with three nested sizes; weights are larger, so that the sizes disagree."""
    model = hf.LlamaForCausalLM.from_pretrained(decoder(folder.parent / f"{folder.name}-base")).eval()
    zoo.enliven(model)
    storage = ElasticStorage(SizesRecord.of(make_elastic(model, [0.25, 0.5, 1])))
    task = {"name": "language-modelling", "kind": "language-modelling"}
    step = Step(method="elastic", seed=0)
    save(folder, make_plain(model), processor=corpus.tokenizer(), step=step, storage=storage, task=task)
    return folder


def headed(folder: Path, head: type, **settings: Any) -> Path:
    """A plain checkpoint of the generated texts with some head, as somebody else would have saved it."""
    torch.manual_seed(5)
    sizes = {**SMALL, "vocab_size": 5 + len(corpus.WORDS), "max_position_embeddings": 64}
    head(hf.BertConfig(**sizes, **settings)).save_pretrained(folder)
    corpus.tokenizer().save_pretrained(folder)
    return folder


def accuracy_by_hand(model: Any, processor: Any, file: Path) -> float:
    """Share of the rows of a table `text`, `label` whose label is the likeliest, asked one by one."""
    rows = [line.rsplit("\t", 1) for line in file.read_text().splitlines()[1:]]
    right = 0
    for text, label in rows:
        with torch.inference_mode():
            logits = model(**processor(text, return_tensors="pt")).logits[0]
        right += model.config.id2label[int(logits.argmax())] == label
    return right / len(rows)


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a disk that is full, a file cannot grow beyond some size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def listing(folder: Path) -> set[str]:
    """Everything below a folder, hidden names included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
