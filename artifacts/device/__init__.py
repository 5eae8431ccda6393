"""Devices: the CPU and CUDA rows of one table, with memory, threads and CUDA graphs."""
