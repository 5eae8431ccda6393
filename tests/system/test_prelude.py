"""The prelude: each layer, init, loss, optimizer and schedule against its formula in NumPy, run by the interpreter."""

import math

import numpy as np
import pytest

from sexpgpu.graph.interpreter import run
from tests.support import plan_of

SEED = np.array([5, 0], "uint32")
LOADER = '(defloader d :source "d.npz" :batch 4 :fields (list :x [5 8] :f32 :y [5] :i32))'
CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # a few dozen f32 roundings, against formulas in float64


def run_phase(plan, phase, **feeds):
    """Outputs of a phase by (kind, name); parameters come from init, other inputs from ``feeds`` by name."""
    inits = outputs(plan.phase("init"), {"": SEED})
    feeds = {"": SEED, **{name: value for (kind, name), value in inits.items() if kind == "param"}, **feeds}
    return outputs(plan.phase(phase), feeds)


def outputs(phase, feeds):
    arrays = run(phase.graph, [np.asarray(feeds[p.name], numpy_name(p)) for p in phase.inputs])
    return {(p.kind, p.name): a for p, a in zip(phase.outputs, arrays, strict=True)}


def numpy_name(port):
    return {"f32": "float32", "i32": "int32", "i64": "int64", "u32": "uint32"}[port.type.dtype]


def values(model, expressions, **parts):
    """Each expression's array, with ``x`` and ``y`` the batch's fields; and the model's parameters by name."""
    entries = " ".join(f":v{i} {text}" for i, text in enumerate(expressions))
    same = " ".join(f":v{i} (getf state :v{i})" for i in range(len(expressions)))
    init = f"(lambda (batch ctx) (let* ((x (field batch :x)) (y (field batch :y))) (list {entries})))"
    plan = plan_of(
        model=model,
        loader=LOADER,
        generate=f"(defgenerate :trips 1 :init {init} :step (lambda (state trip ctx) (list {same})))",
        objective="(defobjective (inputs ctx) (mean (square (m (getf inputs :x)))))",
        **parts,
    )
    out = run_phase(plan, "generate.init", x=X, y=Y)
    params = {n[2:]: a.astype("f8") for (_, n), a in outputs(plan.phase("init"), {"": SEED}).items()}
    return [out["state", f"v{i}"] for i in range(len(expressions))], params


X = np.sin(np.arange(4 * 5 * 8, dtype="f8") * 0.7).reshape(4, 5, 8).astype("float32")
Y = (np.arange(20) % 8).reshape(4, 5).astype("int32")


# ---- layers ----------------------------------------------------------------------------------------------------------


def test_linear_and_mlp():
    model = "(defmodel m (x) (mlp (linear x :one 6) :two 12 3 :activation relu))"
    (y, z), p = values(model, ["(m x)", "(m (* 2.0 x))"])
    for got, x in ((y, X), (z, 2 * X)):
        hidden = np.maximum((x @ p["one/weight"] + p["one/bias"]) @ p["two/up/weight"] + p["two/up/bias"], 0)
        np.testing.assert_allclose(got, hidden @ p["two/down/weight"] + p["two/down/bias"], **CLOSE)


def test_a_linear_layer_without_bias_has_no_bias():
    _, p = values("(defmodel m (x) (linear x :one 6 :bias false))", ["(m x)"])
    assert {name for name in p if name.startswith("one")} == {"one/weight"}


def test_embedding_reads_rows():
    model = "(defmodel m (x &key (ids (cast (* 0.0 x) :i32))) (embedding ids :table 8 3))"
    (y,), p = values(model, ["(m x :ids y)"])
    np.testing.assert_array_equal(y, p["table"][Y].astype("float32"))


@pytest.mark.parametrize("layer, centre", [("layer-norm", True), ("rms-norm", False)])
def test_norms(layer, centre):
    (y,), _ = values(f"(defmodel m (x) ({layer} x :n))", ["(m x)"])
    x = X.astype("f8") - (X.mean(-1, keepdims=True, dtype="f8") if centre else 0)
    np.testing.assert_allclose(y, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), **CLOSE)


def attention(q, k, v, heads, causal):
    split = lambda t: t.reshape(*t.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = split(q), split(k), split(v)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3).reshape(*out.shape[:1], out.shape[2], -1)


def affine(p, name, x):
    return x @ p[f"{name}/weight"] + p[f"{name}/bias"]


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(causal):
    (y,), p = values(f"(defmodel m (x) (self-attention x :a :heads 2 :causal {str(causal).lower()}))", ["(m x)"])
    mixed = attention(*(affine(p, f"a/{n}", X) for n in ("query", "key", "value")), 2, causal)
    np.testing.assert_allclose(y, affine(p, "a/out", mixed), **CLOSE)


def test_cross_attention():
    model = "(defmodel m (x) (cross-attention x (slice x :axis 1 :to 3) :a :heads 2))"
    (y,), p = values(model, ["(m x)"])
    parts = affine(p, "a/query", X), affine(p, "a/key", X[:, :3]), affine(p, "a/value", X[:, :3])
    np.testing.assert_allclose(y, affine(p, "a/out", attention(*parts, 2, False)), **CLOSE)


def test_a_block_read_one_position_at_a_time_is_the_causal_block():
    """The cache is filled with large numbers at first, so that an unmasked position would show."""
    model = "(defmodel m (x &key cache at) (transformer-block x :b :heads 2 :causal true :cache cache :at at))"
    step = """(fold (lambda (so-far i)
                (let* ((at (constant i))
                       (made (m (slice x :axis 1 :from i :to (+ i 1)) :cache (getf so-far :cache) :at at)))
                  (list :cache (getf made :cache) :rows (concat-lists (getf so-far :rows) (list (getf made :out))))))
              (list :cache (list :k (full [4 2 5 4] 1e3) :v (full [4 2 5 4] 1e3)) :rows (list))
              (range 5))"""
    rows = " ".join(f"(nth {i} (getf {step} :rows))" for i in range(5))
    (whole, stepped), _ = values(model, ["(m x)", f"(concat {rows} :axis 1)"])
    np.testing.assert_allclose(stepped, whole, **CLOSE)


def test_gru():
    row = "(squeeze (slice x :axis 1 :from {} :to {}) [1])"
    model = f"(defmodel m (x) (gru {row.format(0, 1)} (slice {row.format(1, 2)} :axis 1 :to 3) :g 3))"
    (y,), p = values(model, ["(m x)"])
    h = X[:, 1, :3]
    a, b = np.split(affine(p, "g/input", X[:, 0]), 3, -1), np.split(affine(p, "g/hidden", h), 3, -1)
    sigmoid = lambda t: 1 / (1 + np.exp(-t))  # noqa: E731
    reset, update = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    np.testing.assert_allclose(y, update * h + (1 - update) * np.tanh(a[2] + reset * b[2]), **CLOSE)


# ---- inits -----------------------------------------------------------------------------------------------------------


def initial(init, shape):
    param = f"(param :p [{shape[0]} {shape[1]}] :init {init})"
    plan = plan_of(model=f"(defmodel m (x) (+ (linear x :l 2) (* 0.0 (sum {param}))))")
    return outputs(plan.phase("init"), {"": SEED})["param", "m/p"].astype("f8")


DEVIATIONS = {
    "(normal 0.3)": 0.3,
    "he": math.sqrt(2 / 200),
    "xavier": math.sqrt(2 / 300),
    "(uniform -1.0 2.0)": math.sqrt(9 / 12),
}


@pytest.mark.parametrize("init, sd", DEVIATIONS.items())
def test_an_init_has_its_deviation(init, sd):
    """20000 draws: the deviation's own standard error is below 0.5 %; six of them."""
    p = initial(init, (200, 100))
    assert p.std() == pytest.approx(sd, rel=0.03)
    assert abs(p.mean() - (0.5 if "uniform" in init else 0)) < 6 * sd / math.sqrt(p.size)


def test_bounded_inits_keep_their_bounds():
    limit = math.sqrt(6 / 300)
    assert limit * 0.99 < np.abs(initial("xavier", (200, 100))).max() <= limit
    p = initial("(uniform -1.0 2.0)", (200, 100))
    assert -1 <= p.min() < -0.99 and 1.99 < p.max() < 2


def test_plain_inits():
    assert (initial("zeros", (3, 2)) == 0).all() and (initial("ones", (3, 2)) == 1).all()
    assert (initial("(constant 0.25)", (3, 2)) == 0.25).all()


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (32, 32)])
def test_orthogonal(shape):
    """f32 products of unit vectors: errors of a few 1e-7."""
    p = initial("orthogonal", shape)
    gram = p.T @ p if shape[0] >= shape[1] else p @ p.T
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=5e-6)


# ---- losses ----------------------------------------------------------------------------------------------------------


def log_softmax(x):
    x = x.astype("f8")
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_losses_and_measures():
    texts = {
        "(accuracy x y)": (X.argmax(-1) == Y).mean(),
        "(smoothed-cross-entropy x y :smoothing 0.2)": None,
        "(binary-cross-entropy x (sigmoid x))": None,
        "(mean-squared-error x (* 2.0 x))": np.square(X.astype("f8")).mean(),
        "(mean-absolute-error x (* 2.0 x))": np.abs(X.astype("f8")).mean(),
        "(huber (* 3.0 x) (* 0.5 x))": None,
        "(kl-divergence (log-softmax x) (log-softmax (* 2.0 x)))": None,
        "(entropy x)": None,
        "(masked-mean x (broadcast (cast (> (iota [1 1 8]) 2) :f32) [4 5 8]))": X[..., 3:].mean(dtype="f8"),
        "(masked-mean x (zeros-like x))": 0.0,
    }
    l, l2, x = log_softmax(X), log_softmax(2 * X), X.astype("f8")  # noqa: E741
    nll = -np.take_along_axis(l, Y[..., None], -1)[..., 0]
    texts["(smoothed-cross-entropy x y :smoothing 0.2)"] = 0.8 * nll - 0.2 * l.mean(-1)
    s = 1 / (1 + np.exp(-x))
    texts["(binary-cross-entropy x (sigmoid x))"] = -(s * np.log(s) + (1 - s) * np.log(1 - s)).mean()
    gap = 2.5 * np.abs(x)
    texts["(huber (* 3.0 x) (* 0.5 x))"] = np.where(gap < 1, gap * gap / 2, gap - 0.5).mean()
    texts["(kl-divergence (log-softmax x) (log-softmax (* 2.0 x)))"] = (np.exp(l) * (l - l2)).sum(-1)
    texts["(entropy x)"] = -(np.exp(l) * l).sum(-1)
    got, _ = values("(defmodel m (x) (linear x :l 2))", list(texts))
    for text, array, want in zip(texts, got, texts.values(), strict=True):
        np.testing.assert_allclose(array, want, err_msg=text, **CLOSE)


# ---- optimizers and schedules ----------------------------------------------------------------------------------------

B1, B2 = 0.9, 0.999


def reference(name, p, g, s, t):
    """One step in float64: the parameter and the state after it. lr 0.1, decay 0.01; t counts from 1."""
    if name == "sgd":
        return p - 0.1 * (g + 0.01 * p), {}
    if name in ("momentum", "nesterov"):
        push = g + 0.01 * p
        v = 0.9 * s.get("velocity", 0) + push
        return p - 0.1 * (push + 0.9 * v if name == "nesterov" else v), {"velocity": v}
    m = s.get("m", 0 * p)
    if name == "lion":
        return p - 0.1 * (np.sign(0.9 * m + 0.1 * g) + 0.01 * p), {"m": 0.5 * m + 0.5 * g}
    m, v = B1 * m + (1 - B1) * g, B2 * s.get("v", 0) + (1 - B2) * g * g
    step = (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + 1e-8)
    return p - 0.1 * (step + (0.01 * p if name == "adamw" else 0)), {"m": m, "v": v}


@pytest.mark.parametrize(
    "name, text",
    [
        ("sgd", "(sgd :lr 0.1 :weight-decay 0.01)"),
        ("momentum", "(momentum :lr 0.1 :weight-decay 0.01)"),
        ("nesterov", "(momentum :lr 0.1 :nesterov true :weight-decay 0.01)"),
        ("adam", "(adam :lr 0.1)"),
        ("adamw", "(adamw :lr (lambda (ctx) (constant 0.1)))"),
        ("lion", "(lion :lr 0.1 :beta2 0.5 :weight-decay 0.01)"),
    ],
)
def test_an_optimizer_over_three_steps(name, text):
    phase = plan_of(optimizer=f"(defoptimizer {text})").phase("update")
    params = {p.name: np.linspace(-1, 1, p.type.size).reshape(p.type.shape) for p in phase.inputs if p.kind == "param"}
    now = {("param", n): p for n, p in params.items()}
    now |= {("optimizer", p.name): np.zeros(p.type.shape) for p in phase.inputs if p.kind == "optimizer"}
    want, states = dict(params), {n: {} for n in params}
    for step in range(3):
        # signs that turn while the sizes grow, so that lion's directions depend on both of its betas
        grads = {n: np.cos(p + step / 9) * (-3) ** step for n, p in params.items()}
        feeds = {**now, **{("gradient", n): g for n, g in grads.items()}, ("ctx", "step"): step}
        arrays = run(phase.graph, [np.asarray(feeds[p.kind, p.name], numpy_name(p)) for p in phase.inputs])
        now |= {(p.kind, p.name): a for p, a in zip(phase.outputs, arrays, strict=True)}
        for n in params:
            want[n], states[n] = reference(name, want[n], grads[n], states[n], step + 1)
    for n in params:
        np.testing.assert_allclose(now["param", n], want[n], **CLOSE)
        for key, value in states[n].items():
            np.testing.assert_allclose(now["optimizer", f"{n}/{key}"], value, **CLOSE)


@pytest.mark.parametrize(
    "text, want",
    [
        ("(warmup :peak 2.0 :steps 4)", {0: 0.5, 2: 1.5, 3: 2.0, 90: 2.0}),
        ("(warmup :peak 2.0)", {0: 2.0, 9: 2.0}),
        ("(warmup-cosine :peak 2.0 :warmup 4 :steps 104)", {0: 0.5, 3: 2.0, 4: 2.0, 54: 1.0, 104: 0.0, 200: 0.0}),
        ("(warmup-cosine :peak 2.0 :steps 100 :floor 0.5)", {0: 2.0, 50: 1.5, 100: 1.0}),
        ("(warmup-linear :peak 2.0 :warmup 4 :steps 104)", {0: 0.5, 29: 1.5, 104: 0.0, 500: 0.0}),
        ("(inverse-sqrt :peak 2.0 :warmup 4)", {0: 0.5, 3: 2.0, 15: 1.0, 399: 0.2}),
        ("(step-decay :peak 2.0 :every 10 :factor 0.5)", {0: 2.0, 9: 2.0, 10: 1.0, 29: 0.5}),
    ],
)
def test_a_schedule_at_some_steps(text, want):
    phase = plan_of(optimizer=f"(defoptimizer (sgd :lr {text}))").phase("update")
    for step, rate in want.items():
        feeds = [np.full(p.type.shape, step if p.kind == "ctx" else 0, numpy_name(p)) for p in phase.inputs]
        arrays = run(phase.graph, feeds)
        got = next(a for p, a in zip(phase.outputs, arrays, strict=True) if p.name == "lr")
        assert got == pytest.approx(rate, rel=1e-5, abs=1e-6), step  # f32 cosines of angles up to pi
