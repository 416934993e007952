"""slimformer, by its own training path: packed examples, the trainer, the cut forwards."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

from relation_work import Work, report

from slimformer.methods.distill import DistillConfig
from slimformer.methods.distill.learning import learn
from slimformer.methods.distill.setup import set_up
from slimformer.train import TrainingOptions
from slimformer.train.loop.trainer import SlimTrainer  # noqa: F401 (its imports are no part of the work)


def main() -> None:
    """Train for some steps and report."""
    work = Work.read()
    config = DistillConfig.make(
        {
            "teacher": work.teacher,
            "teacher_dtype": work.teacher_dtype,
            "layers": work.layers,
            "hidden": work.hidden,
            "heads": work.attention_heads,
            "relation_heads": work.heads,
            "corpus": (work.texts,),
            "max_length": work.length,
            "buffer": 1,
        }
    )
    setup = set_up(config)
    marks: list[float] = []
    tokens: list[int] = []
    stream = setup.stream()
    collator = stream.collator()

    def collate(items: list) -> dict:
        marks.append(time.perf_counter())
        batch = collator(items)
        tokens.append(int(batch["attention_mask"].sum()))
        return batch

    stream.collator = lambda: collate  # type: ignore[method-assign]
    options = TrainingOptions(
        max_steps=work.steps + 1, batch_size=work.batch, lr=6e-4, save_every=10**6, threads=work.threads
    )
    with tempfile.TemporaryDirectory() as folder:
        examples = stream.first(options.batch_size * (work.steps + 1))
        learn(setup, setup.teacher.config.num_hidden_layers - 1, options, examples, Path(folder), quiet=True)
    seconds = [after - before for before, after in itertools.pairwise(marks[1:])]  # the first batch was a trial
    report(work, seconds[: work.steps], tokens[1 : work.steps + 1])


if __name__ == "__main__":
    main()
