"""f32 functions made of IEEE operations alone, for CPUs as expressions and for CUDA as text."""
