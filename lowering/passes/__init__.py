"""Our Relax passes, one a file."""
