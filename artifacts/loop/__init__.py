"""The training step over phases, and the simulation of its memory."""
