"""Matrix products on a GPU: by threads in float32, and by tensor cores."""
