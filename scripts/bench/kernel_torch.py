"""The kernels in PyTorch, measured on request: reads lines {"case": N, "seconds": S}, answers {"seconds": best}.

Started by scripts/bench/kernels with the peers' Python. The backward kernels are PyTorch's own (aten), without the
cost of building a graph; those that take what the forward pass kept make that first, as ours do.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from kernel_cases import CASES, Case  # noqa: E402
from kernel_timing import best  # noqa: E402

aten = torch.ops.aten


def _turned(x: Any, how: str) -> Any:
    return x.transpose(-1, -2) if how == "T" else x


def _softmax_gradient(x: Any, dy: Any) -> Any:
    return aten._softmax_backward_data(dy, x.softmax(-1), -1, torch.float32)


def _normalize_gradient(x: Any, g: Any, b: Any, dy: Any) -> Any:
    n = [x.shape[-1]]
    _, mean, scale = aten.native_layer_norm(x, n, g, b, 1e-5)
    return aten.native_layer_norm_backward(dy, x, n, mean, scale, g, b, [True, True, True])


def _cross_entropy_gradient(x: Any, label: Any) -> Any:
    y = aten._log_softmax(x, -1, False)
    loss, weight = aten.nll_loss_forward(y, label, None, 1, -100)
    dy = aten.nll_loss_backward(torch.ones_like(loss), y, label, None, 1, -100, weight)
    return aten._log_softmax_backward_data(dy, y, -1, torch.float32)


def _adamw(p: Any, g: Any, m: Any, v: Any, step: Any) -> Any:
    how = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    torch._fused_adamw_([p], [g], [m], [v], [], [step], amsgrad=False, maximize=False, **how)


def call(case: Case) -> Any:
    s = case.sizes
    if case.group == "product":
        return lambda a, b: torch.matmul(_turned(a, case.what[0]), _turned(b, case.what[1]))
    return {
        "add": torch.add,
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "gelu gradient": lambda x, dy: aten.gelu_backward(dy, x, approximate="tanh"),
        "transpose": lambda x: x.t().contiguous(),
        "adamw": _adamw,
        "softmax": lambda x: x.softmax(-1),
        "softmax gradient": _softmax_gradient,
        "normalize": lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b),
        "normalize gradient": _normalize_gradient,
        "argmax": lambda x: x.argmax(-1),
        "cross-entropy": lambda x, label: F.cross_entropy(x, label, reduction="none"),
        "cross-entropy gradient": _cross_entropy_gradient,
        "sum of columns": lambda x: x.sum(1),
        "sum of rows": lambda x: x.sum(0),
        "sum of all": torch.sum,
        "gather": lambda table, ids: F.embedding(ids, table),
        "embedding gradient": lambda ids, rows: aten.embedding_dense_backward(rows, ids, s[1], -1, False),
        "scatter-add": lambda base, ids, rows: base.index_add(0, ids, rows),
        "uniform draw": lambda: torch.rand(s),
        "normal draw": lambda: torch.randn(s),
    }[case.what]


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for line in sys.stdin:
        asked = json.loads(line)
        case = CASES[asked["case"]]
        inputs = [torch.tensor(x) for x in case.inputs()]
        inputs = [x.long() if x.dtype == torch.int32 else x for x in inputs]
        if case.what == "adamw":
            inputs.append(torch.tensor(1.0))
        function = call(case)
        with torch.no_grad():
            seconds = best(lambda function=function, inputs=inputs: function(*inputs), asked["seconds"])
        print(json.dumps({"seconds": seconds, "version": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
