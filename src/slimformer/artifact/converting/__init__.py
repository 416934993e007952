"""One artifact made of another without training: a mask merged, packed weights unpacked."""
