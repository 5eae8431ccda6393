"""What a plan will cost: fusion, time, memory, and how many microbatches one call does."""
