"""Opening an artifact: what is checked before its weights are parsed, without torch, Transformers and pydantic."""
