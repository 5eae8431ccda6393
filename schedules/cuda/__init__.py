"""CUDA source to cubin or PTX, by NVRTC."""
