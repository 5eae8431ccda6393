"""Text to checked forms: source places, diagnostics, the reader, the grammar and run files with their includes."""
