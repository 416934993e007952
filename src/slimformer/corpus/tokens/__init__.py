"""The tokens of a corpus: made when they are needed, by processes beside this one, or once and kept."""
