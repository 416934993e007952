"""Data sets of the Hub: their rows are read as they come over the network, and no text of them is put on the disk."""
