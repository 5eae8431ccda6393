"""What a phase is given fits it by the manifest (artifacts/format/manifest_checks.py), and is not looked at again."""

from __future__ import annotations

import tvm
from tvm import relax

INPUTS = "num_input"  # how many leading parameters VMShapeLower checks; of the others, static shapes are taken on trust


def trusted(module: tvm.IRModule) -> tvm.IRModule:
    """``module`` without checks of rank, dtype and shape at the start of each function. Two calls an argument took as
    long as the function's small kernels."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, func.with_attr(INPUTS, 0))
    return module
