"""Checkpoints: their contents, how they are published, and which run they belong to."""
