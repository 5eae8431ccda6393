"""Neural operators without parameters, and the control of gradients."""

from __future__ import annotations

import math
from typing import Any

from .activations import HINT
from .attention_mask import guarded, of_all_queries
from .batching import as_given, attended, pointwise, summed
from .element_boxes import same_origins
from .reduction import HALVES, halves_in_f32, in_f32, widening
from .spec import ZERO_GRAD, attr, index, key, op, tensor
from .type_rules import BOOLS, FLOATS, WHOLE, axes_of, axis_attr, need, same_dtype, unary
from .types import ShapeFault, TensorType, broadcast, listed
from .work import NORMALIZE, SOFTMAX, attention_work, nothing, per_element

X = (tensor("x"),)
AXIS = (tensor("x"), key("axis", "int", -1))
MASKED_SCORE = -1e30  # of a hidden key; no finite score comes near: exp(MASKED_SCORE - score) is exactly 0
F = [("f32", (3, 5))]
AXIS_CASES = ((F, {}), (F, {"axis": 0}), ([("f32", (2, 3, 4), -60.0, 60.0)], {"axis": 1}), ([("f32", (4, 40))], {}),
              ([("f64", (3, 5))], {}),
              ([("bf16", (3, 40))], {}), ([("f16", (3, 40))], {}))


# -- softmax --------------------------------------------------------------------------------------------------------


def softmax_ref(np: Any, x: Any, axis: int = -1) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax_ref(np: Any, x: Any, axis: int = -1) -> Any:
    centred = x - np.max(x, axis=axis, keepdims=True)
    return centred - np.log(np.sum(np.exp(centred), axis=axis, keepdims=True))


def softmax_vjp(b: Any, dy: Any, y: Any, x: Any, axis: int) -> Any:
    return b("softmax-grad", dy, y, axis=axis)


def log_softmax_vjp(b: Any, dy: Any, y: Any, x: Any, axis: int) -> Any:
    return b("log-softmax-grad", dy, y, axis=axis)


op("softmax", "exp of each element over the sum of exp along `:axis`, the last by default. bf16 and f16 are computed "
   "in f32.",
   group="neural", precision="f32", args=AXIS, normal=axis_attr(-1), type=unary(FLOATS, hint=HINT),
   ref=halves_in_f32(softmax_ref),
   work=per_element(SOFTMAX),
   relax=in_f32(lambda r, x, axis: r.nn.softmax(x, axis)),
   vjp=widening(softmax_vjp),
   onnx=lambda o, x, axis: o("Softmax", x, axis=axis),
   stack=summed,
   cases=AXIS_CASES)

op("log-softmax", "log of softmax along `:axis`, the last by default, without overflow. bf16 and f16 are computed "
   "in f32.",
   group="neural", precision="f32", args=AXIS, normal=axis_attr(-1), type=unary(FLOATS, hint=HINT),
   ref=halves_in_f32(log_softmax_ref),
   work=per_element(SOFTMAX),
   relax=in_f32(lambda r, x, axis: r.nn.log_softmax(x, axis)),
   vjp=widening(log_softmax_vjp),
   onnx=lambda o, x, axis: o("LogSoftmax", x, axis=axis),
   stack=summed,
   cases=AXIS_CASES)


# -- normalization --------------------------------------------------------------------------------------------------


def norm_attrs(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """A ``normal`` column: ``axes`` counted from 0, the last by default, and ``eps``, 1e-5 by default."""
    axes = axes_of(attrs.get("axes", (-1,)), types[0].rank)
    if not axes:
        raise ShapeFault(":axes names no axis")
    return {"axes": axes, "eps": float(attrs.get("eps", 1e-5))}


def rms_vjp(b: Any, dy: Any, y: Any, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    return b("rms-normalize-grad", dy, y, x, axes=axes, eps=eps)


def normalize_vjp(b: Any, dy: Any, y: Any, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    return b("normalize-grad", dy, y, x, axes=axes, eps=eps)


def rms_ref(np: Any, x: Any, axes: Any = (-1,), eps: float = 1e-5) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(eps))


def normalize_ref(np: Any, x: Any, axes: Any = (-1,), eps: float = 1e-5) -> Any:
    return rms_ref(np, x - np.mean(x, axis=axes, keepdims=True), axes, eps)


NORM_ARGS = (tensor("x"), key("axes", "ints", (-1,)), key("eps", "number", 1e-5))
NORM_CASES = ((F, {}), (F, {"axes": (0, 1)}), ([("f32", (2, 3, 40))], {"eps": 1e-3}),
              ([("f32", (2, 6, 3))], {"axes": 1}), ([("f64", (3, 5))], {}),
              ([("bf16", (3, 40))], {}), ([("f16", (3, 40))], {}))

for name, formula, ref, vjp in (
    ("normalize", "(x - mean) / sqrt(variance + eps)", normalize_ref, normalize_vjp),
    ("rms-normalize", "x / sqrt(mean(x^2) + eps)", rms_ref, rms_vjp),
):
    op(name, f"{formula} over `:axes`, the last by default. bf16 and f16 are computed in f32.",
       group="neural", args=NORM_ARGS, normal=norm_attrs, type=unary(FLOATS, hint=HINT),
       ref=halves_in_f32(ref), work=per_element(NORMALIZE),
       relax=lambda r, x, axes, eps, name=name: r.kernel(name, x, axes=axes, eps=eps),
       vjp=widening(vjp),
       stack=summed,
       cases=NORM_CASES,
       tolerance=(1e-5, 2e-6))  # the scale carries the roundings of two sums


# -- attention and cross-entropy ------------------------------------------------------------------------------------


def check_attention(q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, causal: bool) -> None:
    """TypeFault or ShapeFault unless q [.. q d], k [.. k d], v [.. k e] and mask [.. q k] fit each other."""
    need(FLOATS, q, k, v, hint=HINT)
    same_dtype(q, k, v)
    if min(q.rank, k.rank, v.rank) < 2:
        raise ShapeFault(f"q {q}, k {k} and v {v} must have rank 2 or more")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeFault(f"q {q}, k {k} and v {v} must be [.. q d], [.. k d] and [.. k e]")
    if causal and q.shape[-2] != k.shape[-2]:
        raise ShapeFault(f":causal needs as many queries as keys, not {q.shape[-2]} and {k.shape[-2]}; give a :mask")
    if mask:
        need(BOOLS, mask, hint="a mask is true where a key is seen")
        scores = (*broadcast(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
        if broadcast(scores, mask.shape) != scores:
            raise ShapeFault(f"the mask {mask} does not broadcast to the scores, {listed(scores)}")


def of_heads(b: Any, x: Any, heads: tuple[int, ...]) -> Any:
    """``x``, queries, keys or values, for each of ``heads``."""
    shape = (*heads, *x.type.shape[-2:])
    if x.type.shape == shape:
        return x
    return b("reshape" if math.prod(shape) == x.type.size else "broadcast", x, shape=shape)


def attention(b: Any, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
    """attend, one kernel, whatever the number of heads: a record's bits must not follow from the batch it is in."""
    check_attention(q.type, k.type, v.type, mask.type if mask else None, causal)
    heads = broadcast(broadcast(q.type.shape[:-2], k.type.shape[:-2]), v.type.shape[:-2])
    q, k, v = (of_heads(b, x, heads or (1,)) for x in (q, k, v))
    queries, poison = q.type.shape[-2], None
    if queries == 1:
        causal = False
    elif q.type.dtype in HALVES:  # of others the kernel sees to what is hidden, and of one query
        if whole := of_all_queries(b, mask, v, causal):
            v = whole
        else:
            v, poison = guarded(b, v, queries, mask, causal)
    y = b("attend", b("+", q, poison) if poison else q, k, v, *([mask] if mask else []), causal=causal)
    return y if heads else b("reshape", y, shape=y.type.shape[1:])


def attend_vjp(b: Any, dy: Any, y: Any, q: Any, k: Any, v: Any, *mask: Any, causal: bool) -> tuple[Any, ...]:
    """One kernel of three results. The weights are computed again: they are larger than all that the forward pass
    leaves behind. Of finite queries, keys and values: cotangents of 0 then give 0, whatever these were."""
    given = [b("finite", x) if x.type.dtype in HALVES else x for x in (q, k, v)]
    made = (b(f"attend-grad-{of}", dy, *given, *mask, causal=causal) for of in "qkv")
    return (*made, *(None for _ in mask))


def softmax_of_scores(np: Any, q: Any, k: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """Which key each query sees, and the softmax of the scores with those of other keys far below."""
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    seen = np.ones(scores.shape[-2:], bool) if mask is None else mask
    if causal:
        seen = seen & np.tri(scores.shape[-2], dtype=bool)
    return seen, softmax_ref(np, np.where(seen, scores, scores.dtype.type(MASKED_SCORE)))


def attention_ref(np: Any, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
    seen, soft = softmax_of_scores(np, q, k, mask, causal)
    if q.shape[-2] == 1:
        shown = np.swapaxes(np.broadcast_to(seen, soft.shape), -1, -2)
        v = np.where(shown, v, v.dtype.type(0))
    elif mask is not None or causal:
        bad = seen & ~np.all(np.isfinite(v), -1)[..., None, :]
        soft = np.where(np.any(bad, -1)[..., None], soft.dtype.type(math.nan), soft)
        v = np.where(np.isfinite(v), v, v.dtype.type(0))
        return np.where(seen | np.isnan(soft), soft, soft.dtype.type(0)) @ v
    return np.where(seen, soft, soft.dtype.type(0)) @ v


ATTEND_CASES = (([("f32", (2, 4, 3, 4)), ("f32", (2, 4, 5, 4)), ("f32", (2, 4, 5, 2))], {"causal": False}),
                ([("f32", (8, 40, 4))] * 2 + [("f32", (8, 40, 6))], {"causal": True}),
                ([("f32", (8, 3, 4)), ("f32", (8, 5, 4)), ("f32", (8, 5, 2)), ("bool", (3, 5))], {"causal": False}),
                ([("f32", (8, 5, 4))] * 3 + [("bool", (8, 1, 5))], {"causal": True}),
                ([("f64", (8, 5, 4))] * 3, {"causal": True}), ([("bf16", (8, 20, 16))] * 3, {"causal": True}),
                ([("f16", (8, 5, 4))] * 3 + [("bool", (8, 1, 5))], {"causal": False}),
                ([("bf16", (4, 1, 8)), *[("bf16", (4, 20, 8))] * 2, ("bool", (20,))], {"causal": False}),
                ([("f64", (4, 1, 4)), *[("f64", (4, 5, 4))] * 2, ("bool", (4, 1, 5))], {"causal": False}),
                ([("f32", (2, 2, 1, 8)), *[("f32", (2, 2, 20, 8))] * 2, ("bool", (2, 1, 1, 20))], {"causal": False}))

op("attend", "attention of many heads as one kernel: q [.. q d], k [.. k d], v [.. k e] with equal leading axes; "
   "the mask, if there is one, is the last argument.",
   group="neural", internal=True, args=(tensor("q"), tensor("k"), tensor("v"), key("causal", "bool")),
   type=lambda q, k, v, *mask, causal: TensorType((*q.shape[:-1], v.shape[-1]), q.dtype),
   ref=halves_in_f32(attention_ref),
   relax=lambda r, *xs, causal: r.kernel("attend", *xs, causal=causal),
   vjp=attend_vjp,
   stack=attended,
   strided=True, work=attention_work(qk_products=1, pv_products=1, softmaxes=1, elementwise=1),
   cases=ATTEND_CASES)

op("attention", "softmax(q k' / sqrt(d)) v: q [.. q d], k [.. k d], v [.. k e] -> [.. q e]. `:mask`, a bool tensor "
   "that broadcasts to [.. q k], is true where a query sees a key; with `:causal` a query sees no later key. A key "
   "that is not seen weighs exactly 0, even if it is infinite or NaN. A query that sees such a value gives infinities "
   "or NaN; one that sees nothing gives 0.",
   group="neural", precision="bf16",
   args=(tensor("q"), tensor("k"), tensor("v"), index("mask", key=True, default=None), key("causal", "bool", False)),
   expand=attention, ref=halves_in_f32(attention_ref),
   cases=(([("f32", (2, 3, 4)), ("f32", (2, 5, 4)), ("f32", (2, 5, 2))], {}),
          ([("f32", (2, 2, 5, 4)), ("f32", (2, 2, 5, 4)), ("f32", (2, 2, 5, 4))], {"causal": True}),
          ([("f32", (3, 4)), ("f32", (5, 4)), ("f32", (5, 2)), ("bool", (3, 5))], {}),
          ([("f32", (2, 1, 4)), ("f32", (2, 5, 4)), ("f32", (2, 5, 4)), ("bool", (1, 5))], {}),
          ([("f32", (2, 5, 4)), ("f32", (5, 4)), ("f32", (5, 2)), ("bool", (2, 1, 5))], {"causal": True}),
          ([("bf16", (2, 40, 16))] * 3, {"causal": True}), ([("bf16", (4, 40, 16))] * 3, {})))


def cross_entropy(b: Any, logits: Any, label: Any) -> Any:
    """-log-softmax(logits)[label], f32 where the logits are bf16 or f16."""
    need(FLOATS, logits.type, hint=HINT)
    need(WHOLE, label.type, hint="labels are integers")
    if label.type.shape != logits.type.shape[:-1] or not logits.type.rank:
        wanted = " ".join(map(str, logits.type.shape[:-1]))
        raise ShapeFault(f"logits {logits.type} need labels of shape [{wanted}], not {label.type}")
    if logits.type.dtype in HALVES:
        logits = b("cast", logits, dtype="f32")
    at = b("reshape", label, shape=(*label.type.shape, 1))
    picked = b("take-along", b("log-softmax", logits, axis=-1), at, axis=-1)
    return b("neg", b("reshape", picked, shape=label.type.shape))


def cross_entropy_ref(np: Any, logits: Any, label: Any) -> Any:
    wide = logits.astype("float32") if logits.dtype.itemsize == 2 else logits
    at = np.clip(label.astype("int64"), 0, logits.shape[-1] - 1)[..., None]
    return -np.take_along_axis(log_softmax_ref(np, wide), at, -1)[..., 0]


op("cross-entropy", "-log softmax(logits) at the label: logits [.. v], label [..] integers -> [..], f32 for bf16 and "
   "f16 logits. A label out of range is clamped.",
   group="neural", precision="f32", args=(tensor("logits"), index("label")),
   expand=cross_entropy, ref=cross_entropy_ref,
   cases=(([("f32", (3, 5)), ("i32", (3,), 0, 5)], {}), ([("f32", (2, 3, 7), -50.0, 50.0), ("u8", (2, 3), 0, 7)], {}),
          ([("f32", (5,)), ("i64", (), 0, 5)], {}),
          ([("bf16", (3, 40)), ("i32", (3,), 0, 40)], {})))


# -- dropout --------------------------------------------------------------------------------------------------------


def dropout(b: Any, x: Any, salt: Any = None, rate: float = 0.0) -> Any:
    """Draws from [0, 1) below 1 - rate keep an element. ShapeFault unless 0 <= rate < 1."""
    need(FLOATS, x.type, hint=HINT)
    if not 0 <= rate < 1:
        raise ShapeFault(f"the rate is {rate}, but must be from 0 to less than 1")
    if rate == 0 or b.evaluating:
        return x
    kept = b("<", b("random-uniform", *(() if salt is None else (salt,)), shape=x.type.shape), b.const(1 - rate, "f32"))
    return b("where", kept, b("*", x, b.const(1 / (1 - rate), x.type.dtype)), b.const(0, x.type.dtype))


def identity_rate(np: Any, x: Any, *salt: Any, rate: float = 0.0) -> Any:
    """Dropout's mean over its draws: the tests check the draws by their distribution."""
    return x


op("dropout", "x with each element set to 0 with probability `rate`, the others divided by 1 - rate. "
   "In an evaluation pass, x itself. Without a `:salt` that changes, as `(getf ctx :step)` does, the mask is "
   "the same in every step, and `check` warns of it.",
   group="neural", args=(tensor("x"), attr("rate", "number"), index("salt", key=True, default=None, number="i64")),
   expand=dropout, ref=identity_rate, mask=True, cases=((F, {"rate": 0.0}),))


# -- control of gradients -------------------------------------------------------------------------------------------

op("stop-gradient", "x; no gradient flows through it.",
   group="control", args=X, type=lambda x: x, ref=lambda np, x: x, relax=lambda r, x: x, vjp=ZERO_GRAD,
   stack=pointwise, fusion="view", work=nothing, rearranges=True, origins=same_origins,
   cases=((F, {}), ([("i32", (3,), 0, 9)], {}), ([("bool", (3,))], {})), grad_cases=())

op("barrier", "x, once `after` is known, and never taken for equal to x: what a recomputed checkpoint body reads.",
   group="control", internal=True, args=(tensor("x"), index("after")), type=lambda x, after: x,
   ref=lambda np, x, after: x, relax=lambda r, x, after: x, vjp=lambda b, dy, y, x, after: (dy, None),
   stack=as_given, fusion="view", work=nothing, origins=same_origins,
   cases=(([("f32", (3, 5)), ("f32", ())], {}), ([("bool", (3,)), ("f32", (2,))], {})))
