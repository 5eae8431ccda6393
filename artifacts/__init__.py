"""The artifact and its runner. Imports none of the other packages and never tvm."""

__version__ = "0.1.0"
