"""Decoders on the native kernels: what they are built from, and how tokens are chosen."""
