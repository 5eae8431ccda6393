"""The evaluator: a lambda of the run file, called on symbolic tensors, makes a graph."""
