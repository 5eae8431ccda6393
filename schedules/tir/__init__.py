"""What the CPU's and the GPU's rules share: reading tensor programs, and writing loops, vectors and reductions."""
