"""Links object code to the bytes of a shared library."""
