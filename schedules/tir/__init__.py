"""What CPU and GPU schedules share: programs read as stages, fusion, and loops, vectors and reductions written."""
