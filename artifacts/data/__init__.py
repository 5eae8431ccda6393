"""Records and batches: file formats, loaders, the shuffled order."""
