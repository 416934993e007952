"""Models that answer: opened by name, measured, timed. Nothing here imports training."""
