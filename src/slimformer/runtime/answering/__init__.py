"""From what users give to what models read, and from logits to answers, in the forms of Transformers' pipelines."""
