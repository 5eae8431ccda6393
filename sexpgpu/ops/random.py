"""Draws: pure functions of the run's seed, of their place in the run file, and of a salt.

The integers are the same on every target. Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011. A 32-bit word gives 24 bits of a uniform float, all that f32 holds between 1/2 and 1. What
is less likely than that can tell is decided by its other 8 bits, and by one word more for the whole draw, drawn at the
complement of its place (``small``).
"""

from __future__ import annotations

import math
from typing import Any

from .spec import ZERO_GRAD, attr, index, key, op, tensor
from .type_rules import FLOATS, WHOLE, need
from .types import ShapeFault, TensorType, TypeFault, listed
from .work import PHILOX, per_element

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
UNIT = 2.0**-24
SHAPE, SALT = attr("shape", "shape"), index("salt", key=True, default=None, number="i64")
SHAPES = (([("i64", ())], {"shape": (5, 3)}), ([], {"shape": ()}), ([("i32", ())], {"shape": (41,)}))
SEEDED = [("u32", (2,), 0, 2**32), ("i64", (), -(2**62), 2**62)]


def philox(np: Any, counter: Any, key: Any) -> Any:
    """counter: u32[... 4], key: two integers -> u32[... 4], the block of each counter."""
    c = [counter[..., i].astype("uint64") for i in range(4)]
    for n in range(ROUNDS):
        k = [(int(k) + n * w) & MASK for k, w in zip(key, WEYL, strict=True)]
        p, q = (c[i] * np.uint64(m) for i, m in zip((0, 2), MULTIPLIERS, strict=True))
        low, high = np.uint64(MASK), np.uint64(32)
        c = [(q >> high) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> high) ^ c[3] ^ np.uint64(k[1]), p & low]
    return np.stack(c, -1).astype("uint32")


def bits_ref(np: Any, seed: Any, salt: Any, shape: tuple[int, ...], place: int) -> Any:
    """Element e of the flat result is word e % 4 of the block of counter (e // 4, place, low salt, high salt)."""
    size = math.prod(shape)
    salt = int(salt) & (2**64 - 1)
    counter = np.zeros((-(-size // 4), 4), "uint32")
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1:] = place, salt & MASK, salt >> 32
    return philox(np, counter, seed).reshape(-1)[:size].reshape(shape)


def bits_type(seed: TensorType, salt: TensorType, shape: tuple[int, ...], place: int) -> TensorType:
    """The type rule of philox: u32 of ``shape``, which has at most 2^34 elements."""
    if seed != TensorType((2,), "u32"):
        raise TypeFault(f"the seed is {seed}, not u32[2]")
    if salt != TensorType((), "i64"):
        raise TypeFault(f"the salt is {salt}, not an i64 scalar")
    if math.prod(shape) > 2**34:
        raise ShapeFault(f"a draw of {math.prod(shape)} elements; the limit is {2**34}")
    return TensorType(tuple(shape), "u32")


def salted(b: Any, salt: Any) -> Any:
    """The salt as an i64 scalar, 0 when none is given."""
    if salt is None:
        return b.const(0, "i64")
    need(WHOLE, salt.type, hint="a salt is an integer")
    if salt.type.rank:
        raise ShapeFault(f"the salt is {salt.type}, but must be a scalar")
    return salt if salt.type.dtype == "i64" else b("cast", salt, dtype="i64")


def bits(b: Any, salt: Any = None, shape: tuple[int, ...] = ()) -> Any:
    """u32 of ``shape``, at the place of this draw in the run file (``DrawBuilder.draw``)."""
    return b.draw(tuple(shape), salted(b, salt))


def top_bits(b: Any, words: Any) -> Any:
    """The upper 24 bits of each word: which of 2^24 cells of [0, 1) its uniform number lies in."""
    return b("shift-right", words, b.const(8, "u32"))


def unit(b: Any, cells: Any) -> Any:
    """Numbers of cells as f32 times 2^-24, exact."""
    return b("*", b("cast", cells, dtype="f32"), b.const(UNIT, "f32"))


def small(b: Any, words: Any, salt: Any) -> Any:
    """(word + s) 2^-32 of words below 2^24, f32: what a draw looks at where its 2^24 cells are too few. s, in (0, 1]
    and in steps of 2^-24, is the same for all words of a draw: it decides in no more than one word of 2^32."""
    shared = unit(b, b("+", top_bits(b, b.draw_beside(salted(b, salt))), b.const(1, "u32")))
    low = b("cast", b("bit-and", words, b.const(2**24 - 1, "u32")), dtype="f32")
    return b("*", b("+", low, shared), b.const(2.0**-32, "f32"))


def below(b: Any, words: Any, limit: int) -> Any:
    """Is each word below ``limit``?"""
    return b("<", words, b.const(limit, "u32"))


def uniform(b: Any, salt: Any = None, shape: tuple[int, ...] = ()) -> Any:
    """f32 of ``shape`` from [0, 1), in steps of 2^-24."""
    return unit(b, top_bits(b, bits(b, salt, shape)))


def normal(b: Any, salt: Any = None, shape: tuple[int, ...] = ()) -> Any:
    """sqrt(-2 log u) cos(2 pi v), u from (0, 1] and v from [0, 1): Box and Muller 1958. u is known to 2^-56 below
    2^-16, where normal numbers beyond 4.7 come from: they end at 8.8."""
    words = bits(b, salt, shape)
    u = unit(b, b("+", top_bits(b, words), b.const(1, "u32")))
    u = b("where", below(b, words, 2**16), small(b, words, salt), u)
    v = uniform(b, salt, shape)
    radius = b("sqrt", b("*", b.const(-2.0, "f32"), b("log", u)))
    return b("*", radius, b("cos", b("*", b.const(2 * math.pi, "f32"), v)))


def bernoulli(b: Any, p: Any, salt: Any = None, shape: tuple[int, ...] = ()) -> Any:
    """bool of ``shape``, true where a uniform draw is below ``p``, which has to broadcast to ``shape``. The draw is
    known to 2^-56 below 2^-8, and to 2^-24 above. A probability that is not finite is none, and counted; one beyond
    [0, 1] is as the end that it is beyond, which roundings reach."""
    need(FLOATS, p.type, hint="a probability is a float")
    p = p if p.type.dtype == "f32" else b("cast", p, dtype="f32")
    words = bits(b, salt, shape)
    u = b("where", below(b, words, 2**24), small(b, words, salt), unit(b, top_bits(b, words)))
    out = b("<", u, p)
    if out.type.shape != tuple(shape):
        raise ShapeFault(f"p is {p.type}, which does not broadcast to {listed(shape)}")
    if p.op != "full":
        b.undrawn.append(not_finite(b, p))
    return out


def categorical(b: Any, logits: Any, salt: Any = None) -> Any:
    """argmax(logits - log e), e = -log u from the exponential distribution (Gumbel's trick). Large noise is that of u
    near 1: above 1 - 2^-12, e is 1 - u to 2^-13 of it, and known to 2^-56. The noise lies between -2.9 and 38.8: a
    logit of -1e9 beside a usual one is never drawn. What is drawn from no distribution is counted (``undrawn``)."""
    need(FLOATS, logits.type, hint="cast the logits to a float dtype")
    if not logits.type.rank:
        raise ShapeFault(f"the logits are {logits.type}, but need an axis to choose from")
    words = bits(b, salt, logits.type.shape)
    rest = b("-", b.const(MASK, "u32"), words)
    u = b("max", unit(b, top_bits(b, words)), b.const(UNIT / 2, "f32"))
    e = b("where", below(b, rest, 2**20), small(b, rest, salt), b("neg", b("log", u)))
    wide = logits if logits.type.dtype == "f32" else b("cast", logits, dtype="f32")
    drawn = b("argmax", b("-", wide, b("log", e)), axis=-1)
    b.undrawn.append(undrawn(b, logits, drawn))
    return drawn


def undrawn(b: Any, logits: Any, drawn: Any) -> Any:
    """How many rows of the logits have no distribution, a scalar f32: those with a NaN or +inf, which argmax picks
    first, and those of nothing but -inf. In each of them, and in no other, the logit that was drawn is not finite."""
    picked = b("take-along", logits, b("reshape", drawn, shape=(*drawn.type.shape, 1)))
    return not_finite(b, picked if picked.type.dtype == "f32" else b("cast", picked, dtype="f32"))


def not_finite(b: Any, x: Any) -> Any:
    """How many elements of the f32 ``x`` are NaN or an infinity, a scalar f32."""
    is_finite = b("<", b("abs", x), b.const(math.inf, "f32"))
    odd = b("where", is_finite, b.const(0.0, "f32"), b.const(1.0, "f32"))
    return b("sum", odd, axes=tuple(range(odd.type.rank)), keepdims=False)


def no_ref(np: Any, *xs: Any, **attrs: Any) -> Any:
    """A draw's value depends on its place; the tests check draws by their words and by their distribution."""
    raise NotImplementedError


op("philox", "u32 words of Philox4x32-10 under the seed, for the draw at `place` and the salt.",
   group="draws", internal=True, args=(index("seed"), index("salt"), key("shape", "shape"), key("place", "int")),
   type=bits_type,
   ref=bits_ref,
   work=per_element(PHILOX),
   relax=lambda r, seed, salt, shape, place: r.kernel("philox", seed, salt, place=place),
   vjp=ZERO_GRAD,
   cases=((SEEDED, {"shape": (5, 3), "place": 7}), (SEEDED, {"shape": (), "place": 2**32 - 1}),
          (SEEDED, {"shape": (2, 2, 8), "place": 0})))

op("random-bits", "u32 words, uniform. `:salt` is an integer scalar, 0 by default.",
   group="draws", args=(SHAPE, SALT), expand=bits, ref=no_ref, cases=SHAPES)

op("random-uniform", "f32 from [0, 1), in steps of 2^-24.",
   group="draws", args=(SHAPE, SALT), expand=uniform, ref=no_ref, cases=SHAPES)

op("random-normal", "f32 of mean 0 and variance 1 (Box-Muller).",
   group="draws", args=(SHAPE, SALT), expand=normal, ref=no_ref, cases=SHAPES)

op("random-bernoulli", "true with probability p, a float or a tensor that broadcasts to the shape. Small probabilities "
   "are resolved to 2^-56. A p that is NaN or infinite ends the run with `E-NUM-002`. Without a `:salt` that changes, "
   "the draw is the same in every step, and `check` warns.",
   group="draws", precision="f32", args=(SHAPE, index("p", number="f32"), SALT), mask=True,
   expand=bernoulli, ref=no_ref,
   cases=(([("f32", (3,), 0.0, 1.0)], {"shape": (40, 3)}), ([("f64", (), 0.0, 1.0), ("i64", ())], {"shape": (9,)})))

op("random-categorical", "i32 along the last axis of the logits, each with probability softmax(logits). Small "
   "probabilities are resolved to 2^-56. Logits that are no distribution (a NaN, an infinity, only -infinity) end the "
   "run with `E-NUM-002`.",
   group="draws", precision="f32", args=(tensor("logits"), SALT), expand=categorical, ref=no_ref,
   cases=(([("f32", (20, 5))], {}), ([("f32", (7,)), ("i32", ())], {}), ([("bf16", (4, 3, 5))], {})))
