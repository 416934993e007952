"""Models for other libraries and runtimes. Nothing here imports training."""
