"""The command line of ``sexpgpu``."""
