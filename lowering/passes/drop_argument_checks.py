"""Drops the argument checks of functions: the manifest's checks have made sure that arguments fit.

See artifacts/format/manifest_checks.py.
"""

from __future__ import annotations

import tvm
from tvm import relax

# A function's attribute: how many leading parameters VMShapeLower checks; it trusts the static shapes of the others.
CHECKED_PARAMS = "num_input"


def drop_argument_checks(module: tvm.IRModule) -> tvm.IRModule:
    """``module`` without checks of rank, dtype and shape at the start of each function. They were two calls an argument
    and took as long as the function's small kernels."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, func.with_attr(CHECKED_PARAMS, 0))
    return module
