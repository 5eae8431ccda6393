"""Tensor programs to object code and CUDA source, a part at a time, in several processes."""
