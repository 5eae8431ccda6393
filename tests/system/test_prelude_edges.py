"""The prelude where probabilities are 0, masked values are no numbers, and steps are many: values and gradients written
out by hand or made in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sexpgpu.graph.interpreter import run
from tests.support import faults, plan_of

NAN, INF = float("nan"), float("inf")
HALF = math.log(0.5)
CLOSE = {"rtol": 2e-6, "atol": 1e-7}  # a few f32 roundings


def loss_and_gradient(text: str, w: list[float], v: list[float]) -> tuple[float, np.ndarray]:
    """``text`` of the trained ``w`` and the given ``v``, both f32[n]: its value, and its gradient to w."""
    n = len(w)
    phase = plan_of(
        model=f"(defmodel m (x) (param :w [{n}] :init zeros))",
        loader=f'(defloader d :source "d.npz" :batch 1 :fields (list :x [{n}] :f32))',
        prepare=f"(defprepare (batch ctx) (list :x (reshape (field batch :x) [{n}])))",
        objective=f"(defobjective (inputs ctx) (let* ((v (getf inputs :x)) (w (model v))) {text}))",
    ).phase("train")
    feeds = {"param": np.array(w, "float32"), "field": np.array([v], "float32")}
    arrays = run(phase.graph, [feeds[p.kind] for p in phase.inputs])
    out = dict(zip((p.kind for p in phase.outputs), arrays, strict=True))
    return float(out["metric"]), out["gradient"]


# what it says; the loss of w and v; w; v; the value; the gradient to w
EDGES = (
    ("entropy of a class of probability 0", "(entropy w)", [0, 0, -INF], [0] * 3, -HALF, [0, 0, 0]),
    ("entropy far from even", "(entropy w)", [0, -200, -INF], [0] * 3, 0, [0, 0, 0]),
    ("kl where both are 0", "(kl-divergence (log-softmax w) v)", [0, 0, -INF], [HALF, HALF, -INF], 0, [0, 0, 0]),
    ("kl where p is 0", "(kl-divergence (log-softmax w) v)", [0, 0, -INF], [HALF, HALF, -1], 0, [0, 0, 0]),
    ("kl to q", "(kl-divergence v (log-softmax w))", [0, 0, -INF], [HALF, HALF, -INF], 0, [0, 0, 0]),
    ("masked-mean of what is masked", "(masked-mean w v)", [-1, -2, -INF], [1, 1, 0], -1.5, [0.5, 0.5, 0]),
    ("masked-mean of NaN", "(masked-mean w v)", [-1, -2, NAN], [1, 1, 0], -1.5, [0.5, 0.5, 0]),
    ("masked-mean of a log at 0", "(masked-mean (log w) v)", [0, 1, 2], [0, 1, 1], math.log(2) / 2, [0, 0.5, 0.25]),
    ("masked-mean of nothing", "(masked-mean w v)", [NAN, INF, -INF], [0, 0, 0], 0, [0, 0, 0]),
    ("cross-entropy beside a class of probability 0", "(cross-entropy w (constant 1 :dtype :i32))", [0, 0, -INF],
     [0] * 3, -HALF, [0.5, -0.5, 0]),
    ("smoothing of 0 is none", "(smoothed-cross-entropy w (constant 1 :dtype :i32) :smoothing 0.0)", [0, 0, -INF],
     [0] * 3, -HALF, [0.5, -0.5, 0]),
    ("smoothing by a tensor of 0",
     "(smoothed-cross-entropy w (constant 1 :dtype :i32) :smoothing (reduce-max v))", [0, 0, -INF],
     [0] * 3, -HALF, [0.5, -0.5, 0]),
    ("binary cross-entropy at infinite logits", "(binary-cross-entropy w v)", [INF, -INF, 0], [1, 0, 1], -HALF / 3,
     [0, 0, -1 / 6]),
    ("binary cross-entropy of even logits", "(binary-cross-entropy w v)", [0, 0, 0, 0], [0, 1, 0.5, 0.25], -HALF,
     [0.125, -0.125, 0, 0.0625]),
    ("binary cross-entropy keeps its digits", "(binary-cross-entropy w v)", [30.0, -30.0], [1, 0], math.exp(-30),
     [-math.exp(-30) / 2, math.exp(-30) / 2]),
    ("binary cross-entropy to a number", "(binary-cross-entropy w 1.0)", [INF, 0], [0, 0], -HALF / 2, [0, -0.25]),
    ("a guarded root at 0", "(sum (where (> w 0.0) (sqrt w) 0.0))", [0, -1, 4], [0] * 3, 2, [0, 0, 0.25]),
    ("the deviation of equals", "(sqrt (variance w))", [2, 2, 2], [0] * 3, 0, [0, 0, 0]),
    ("the norm of zeros", "(sqrt (sum (square w)))", [0, 0, 0], [0] * 3, 0, [0, 0, 0]),
    ("the root of the largest", "(sqrt (reduce-max w))", [0, -1, -2], [0] * 3, 0, [INF, 0, 0]),
    ("a power of a norm", "(pow (sum (square w)) 0.5)", [0, 0, 0], [0] * 3, 0, [0, 0, 0]),
    ("a guarded deviation", "(where (> (variance w) 0.0) (sqrt (variance w)) 0.0)", [2, 2, 2], [0] * 3, 0, [0, 0, 0]),
)  # fmt: skip


@pytest.mark.parametrize("edge", [pytest.param(e, id=e[0]) for e in EDGES])
def test_values_and_gradients_hold_at_probability_0(edge) -> None:
    _, text, w, v, value, gradient = edge
    got, found = loss_and_gradient(text, w, v)
    np.testing.assert_allclose(got, value, **CLOSE)
    np.testing.assert_allclose(found, gradient, **CLOSE)


def test_a_value_that_is_seen_is_not_hidden() -> None:
    """The guards are for weights of exactly 0: a NaN that counts stays one."""
    for text in ("(entropy w)", "(masked-mean w v)", "(binary-cross-entropy w v)"):
        got, _ = loss_and_gradient(text, [NAN, 0, 0], [1, 0, 0])
        assert math.isnan(got), text
    got, _ = loss_and_gradient("(kl-divergence (log-softmax w) v)", [0, 0, -1], [HALF, -INF, 0])
    assert got == INF


@pytest.mark.parametrize(
    "low, high, all_low",
    [
        (100.0, 100.00001, True),  # one unit in the last place apart
        (16777215.0, 16777216.0, True),
        (-3.0, 0.1, False),  # 3.1 as f32 is too large by more than a unit of 0.1
        (0.0, 1e-45, True),
        (2.0, 2.0, True),
    ],
)
def test_uniform_inits_are_below_their_high(low: float, high: float, all_low: bool) -> None:
    phase = plan_of(
        model=f"(defmodel m (x) (* (mean x) (param :w [70000] :init (uniform {low} {high:.50f}))))",
        objective="(defobjective (inputs ctx) (sum (model (getf inputs :x))))",
    ).phase("init")
    w = run(phase.graph, [np.array([5, 0], "uint32")])[0]
    assert w.min() >= np.float32(low) and (w < np.float32(high)).all() or low == high
    assert not all_low or (w == np.float32(low)).all()


def test_uniform_from_high_to_low_is_refused() -> None:
    model = "(defmodel m (x) (* (mean x) (param :w [3] :init (uniform 1.0 0.0))))"
    assert any(fault.startswith("E-") for fault in faults(model=model))


def updated(optimizer: str, grads: list[float], steps: int = 1) -> tuple[np.ndarray, float]:
    """The parameter, from zeros, after ``steps`` of the same gradient; and the reported norm."""
    n = len(grads)
    phase = plan_of(
        model=f"(defmodel m (x) (param :w [{n}] :init zeros))",
        objective="(defobjective (inputs ctx) (sum (model (getf inputs :x))))",
        optimizer=f"(defoptimizer {optimizer})",
    ).phase("update")
    now = {p.name: np.zeros(p.type.shape, "float32") for p in phase.inputs if p.kind in ("param", "optimizer")}
    out: dict[str, np.ndarray] = {}
    for step in range(steps):
        feeds = {"gradient": np.array(grads, "float32"), "ctx": np.asarray(step, "int64")}
        arrays = run(phase.graph, [feeds[p.kind] if p.kind in feeds else now[p.name] for p in phase.inputs])
        out = {p.name: a for p, a in zip(phase.outputs, arrays, strict=True)}
        now = {name: out[name] for name in now}
    return next(now[n] for n in now if n.endswith("w")), float(out["grad_norm"])


@pytest.mark.parametrize(
    "grads, norm, moved",
    [
        ([3e20, 4e20, 0.0], 5e20, [-0.6, -0.8, 0.0]),  # whose squares are no f32
        ([3e-24, 4e-24, 0.0], 5e-24, [-3e-24, -4e-24, 0.0]),  # whose squares are 0 in f32
        ([3e38, 3e38, 3e38, 3e38], float(np.finfo("float32").max), [-0.5] * 4),  # whose norm is no f32
        ([0.0, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0]),
        ([1e-45, 0.0, 0.0], float(np.float32(1e-45)), [-float(np.float32(1e-45)), 0.0, 0.0]),
    ],
)
def test_a_finite_gradient_has_its_norm_and_is_clipped_to_it(grads, norm, moved) -> None:
    param, got = updated("(sgd :lr 1.0 :clip-norm 1.0)", grads)
    assert got == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(param, moved, rtol=1e-5)  # a scale of 2e-39 is subnormal, of 18 bits


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float) -> None:
    param, norm = updated("(sgd :lr 1.0 :clip-norm 1.0)", [1.0, bad, 0.0])
    assert not math.isfinite(norm) and not param.any()


@pytest.mark.parametrize("betas", [":beta2 0.999999", ":beta1 0.999999 :beta2 0.9999999", ":beta1 0.0 :beta2 0.0"])
def test_adam_moves_by_its_rate_where_the_gradient_is_constant(betas: str) -> None:
    param, _ = updated(f"(adam :lr 1.0 {betas})", [0.5, -2.0], steps=3)
    np.testing.assert_allclose(param, [-3.0, 3.0], rtol=2e-6)


@pytest.mark.parametrize(
    "text, want",
    [
        ("(warmup-linear :peak 1.0 :warmup 100000000 :steps 100000100)", {10**8 + 1: 0.99, 10**8 + 51: 0.49}),
        ("(warmup-cosine :peak 1.0 :warmup 100000000 :steps 100000100)", {10**8 + 25: (1 + math.cos(math.pi / 4)) / 2}),
        ("(step-decay :peak 1.0 :every 16777217 :factor 0.5)", {16777216: 1.0, 16777217: 0.5, 33554433: 0.5}),
        ("(warmup-linear :peak 1.0 :warmup 0.5 :steps 2.5)", {1: 0.75}),  # numbers that are not whole
    ],
)
def test_a_schedule_after_more_steps_than_f32_counts(text: str, want: dict[int, float]) -> None:
    phase = plan_of(optimizer=f"(defoptimizer (sgd :lr {text}))").phase("update")
    for step, rate in want.items():
        feeds = [np.full(p.type.shape, step if p.kind == "ctx" else 0, "int64" if p.kind == "ctx" else "float32")
                 for p in phase.inputs]  # fmt: skip
        got = dict(zip((p.name for p in phase.outputs), run(phase.graph, feeds), strict=True))["lr"]
        assert got == pytest.approx(rate, rel=1e-5), step
