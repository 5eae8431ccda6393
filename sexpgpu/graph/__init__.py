"""Graphs of tensor values, and what is done with them before any compiler: gradients, simplification, checks, NumPy."""
