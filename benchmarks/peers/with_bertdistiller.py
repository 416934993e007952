"""The package `bertdistiller`, called as its page says; runs in an environment of its own."""

from __future__ import annotations

import itertools
import tempfile
import time

from bertdistiller import MiniLMTrainer, MiniLMTrainingArguments, create_student
from bertdistiller.data import prepare_dataset
from datasets import Dataset
from relation_work import Work, report
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding


def main() -> None:
    """Train for some steps and report."""
    work = Work.read()
    tokenizer = AutoTokenizer.from_pretrained(work.teacher)
    teacher = AutoModel.from_pretrained(work.teacher)
    data = prepare_dataset([Dataset.from_dict({"text": work.read_texts()})], tokenizer, work.length)
    marks, tokens = [], []
    pad = DataCollatorWithPadding(tokenizer)

    def collate(items: list) -> dict:
        marks.append(time.perf_counter())
        batch = pad(items)
        tokens.append(int(batch["attention_mask"].sum()))
        return batch

    with tempfile.TemporaryDirectory() as folder:
        arguments = MiniLMTrainingArguments(
            teacher_layer=teacher.config.num_hidden_layers,
            student_layer=work.layers,
            student_hidden_size=work.hidden,
            student_attention_heads=work.attention_heads,
            num_relation_heads=work.heads,
            relations={(1, 1): 1.0, (2, 2): 1.0, (3, 3): 1.0},
            output_dir=folder,
            per_device_train_batch_size=work.batch,
            learning_rate=6e-4,
            max_steps=work.steps + 1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        student = create_student(work.teacher, arguments)
        MiniLMTrainer(
            args=arguments, teacher_model=teacher, model=student, train_dataset=data, data_collator=collate
        ).train()
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    report(work, seconds[: work.steps], tokens[: work.steps])


if __name__ == "__main__":
    main()
