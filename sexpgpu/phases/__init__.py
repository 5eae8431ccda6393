"""A run file to the plan of a run: the graphs of its phases, its settings and its identity."""
