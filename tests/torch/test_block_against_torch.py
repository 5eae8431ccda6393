"""The prelude's transformer block, through the whole front of the compiler, against PyTorch's own layer: the loss and
the gradient of every parameter, in float64. The bound: that of test_against_torch.py, for ten times the operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sexpgpu.graph.interpreter import run
from sexpgpu.phases.plan import Phase
from tests.support import plan_of

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = pytest.mark.torch
BATCH, SEQ, WIDTH, HEADS = 3, 6, 8, 2
BOUND = 1e-11


def train_phase() -> Phase:
    fields = f"(list :x [{SEQ} {WIDTH}] :f32 :w [{SEQ} {WIDTH}] :f32)"
    return plan_of(
        model=f"(defmodel m (x) (transformer-block x :b :heads {HEADS} :causal true))",
        loader=f'(defloader d :source "d.npz" :batch {BATCH} :fields {fields})',
        prepare="(defprepare (batch ctx) (list :x (field batch :x) :w (field batch :w)))",
        objective="(defobjective (inputs ctx) (sum (* (model (getf inputs :x)) (getf inputs :w))))",
    ).phase("train")


def ours(arrays: dict[str, np.ndarray], phase: Phase) -> tuple[float, dict[str, np.ndarray]]:
    out = run(phase.graph, [arrays[p.name] for p in phase.inputs], wide=True)
    named = {(p.kind, p.name): x for p, x in zip(phase.outputs, out, strict=True)}
    return float(named["metric", "loss"]), {name: x for (kind, name), x in named.items() if kind == "gradient"}


def layer(p: dict[str, Any]) -> Any:
    """PyTorch's layer with our parameters; its matrices are the transposes of ours."""
    made = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        batch_first=True, norm_first=True, dtype=torch.float64)  # fmt: skip
    parts = {
        "self_attn.in_proj_weight": torch.cat([p[f"m/b/attention/{n}/weight"].T for n in ("query", "key", "value")]),
        "self_attn.in_proj_bias": torch.cat([p[f"m/b/attention/{n}/bias"] for n in ("query", "key", "value")]),
        "self_attn.out_proj.weight": p["m/b/attention/out/weight"].T,
        "self_attn.out_proj.bias": p["m/b/attention/out/bias"],
        "linear1.weight": p["m/b/mlp/up/weight"].T,
        "linear1.bias": p["m/b/mlp/up/bias"],
        "linear2.weight": p["m/b/mlp/down/weight"].T,
        "linear2.bias": p["m/b/mlp/down/bias"],
        **{f"norm{i}.weight": p[f"m/b/norm-{i}/scale"] for i in (1, 2)},
        **{f"norm{i}.bias": p[f"m/b/norm-{i}/shift"] for i in (1, 2)},
    }
    return lambda x, mask: torch.func.functional_call(made, parts, (x,), {"src_mask": mask, "is_causal": True})


def theirs(arrays: dict[str, np.ndarray], names: list[str]) -> tuple[float, dict[str, np.ndarray]]:
    p = {n: torch.tensor(arrays[n], requires_grad=True) for n in names}
    mask = torch.nn.Transformer.generate_square_subsequent_mask(SEQ, dtype=torch.float64)
    loss = (layer(p)(torch.tensor(arrays["x"]), mask) * torch.tensor(arrays["w"])).sum()
    loss.backward()
    return loss.item(), {n: v.grad.numpy() for n, v in p.items()}


def test_the_transformer_block_is_pytorchs() -> None:
    phase = train_phase()
    rng = np.random.default_rng(5)
    arrays = {p.name: rng.normal(size=p.type.shape) for p in phase.inputs}
    names = [p.name for p in phase.inputs if p.kind == "param"]
    assert len(names) == 16
    (loss, gradients), (want_loss, want) = ours(arrays, phase), theirs(arrays, names)
    assert loss == pytest.approx(want_loss, rel=BOUND)
    assert set(gradients) == set(names)
    for name in names:
        bound = BOUND * max(1.0, np.abs(want[name]).max())  # that of the key's bias is 0: softmax does not see a shift
        np.testing.assert_allclose(gradients[name], want[name], rtol=0, atol=bound, err_msg=name)
