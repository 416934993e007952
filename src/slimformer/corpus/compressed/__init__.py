"""Compressed files of text: unpacked as they are read, from their beginning and never to the disk."""
