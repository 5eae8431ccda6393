"""What the commands print: plans, costs, targets, diagnostics."""
