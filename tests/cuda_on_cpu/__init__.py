"""Generated CUDA text, run on the CPU: see docs/gpu-verification.md."""
