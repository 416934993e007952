"""Encoders without some of their neurons, heads and blocks: cut out of the tensors of a file, in NumPy."""
