"""Object code to the bytes of a shared library."""
