"""Tensor programs of operators that Relax lacks, or computes differently from the operator table."""
