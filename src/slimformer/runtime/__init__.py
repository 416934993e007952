"""What computes besides PyTorch; nothing here knows of tasks, artifacts or Transformers."""
