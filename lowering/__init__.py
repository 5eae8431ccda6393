"""Graphs to TVM Relax, and Relax to library bytes. The only package that imports tvm.relax."""
