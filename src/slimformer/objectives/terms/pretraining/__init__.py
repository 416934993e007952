"""Terms of further pre-training: what is hidden, and what is kept of a teacher (arXiv 2210.02871)."""
