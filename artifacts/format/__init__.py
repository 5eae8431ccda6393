"""The artifact: its tar, its manifest, and what must hold between the manifest's parts."""
