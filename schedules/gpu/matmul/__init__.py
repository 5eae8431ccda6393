"""Matmul on a GPU: SIMT (CUDA cores) for float32 and float64, tensor cores for 16-bit operands."""
