"""Draws: known answers, what a draw depends on, and distributions. Seeds are fixed, so that no test fails by chance."""

from itertools import count

import numpy as np
import pytest

from sexpgpu.graph.core import Builder, Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops.random import bits_ref, philox, unit
from sexpgpu.ops.types import ShapeFault, TensorType, TypeFault
from sexpgpu.trace.random_draws import DrawBuilder, place

SEED = np.array([7, 0], "uint32")
N = 200_000
SIGMAS = 4.5  # of the estimate's own standard deviation: a sound generator exceeds it at one seed in 150 000


def builder() -> DrawBuilder:
    return DrawBuilder(Builder().input("seed", TensorType((2,), "u32")), count())


def drawn(op: str, *args: Value, b: DrawBuilder | None = None, seed: np.ndarray = SEED, **attrs) -> np.ndarray:
    return evaluate([(b or builder())(op, *args, **attrs)], {"seed": seed})[0]


@pytest.mark.parametrize(("fill", "words"), [
    (0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
])  # fmt: skip
def test_philox_known_answers_of_random123(fill, words):
    block = philox(np, np.full((1, 4), fill, "uint32"), (fill, fill))
    assert " ".join(f"{w:08x}" for w in block[0]) == words


def test_the_third_known_answer_has_all_its_words_apart():
    """Random123's kat_vectors, philox4x32 10: the digits of pi, so that no two words can be swapped unseen."""
    counter = np.array([[0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]], "uint32")
    block = philox(np, counter, (0xA4093822, 0x299F31D0))
    assert " ".join(f"{w:08x}" for w in block[0]) == "d16cfe09 94fdcceb 5001e420 24126ea1"


def test_an_element_is_a_word_of_the_counter_the_contract_names():
    salt, where = -5, 0x12345678
    bits = bits_ref(np, SEED, np.int64(salt), (3, 7), where)
    for e in (0, 5, 20):
        counter = np.array([[e // 4, where, salt & 0xFFFFFFFF, (salt >> 32) & 0xFFFFFFFF]], "uint32")
        assert bits.reshape(-1)[e] == philox(np, counter, (7, 0))[0, e % 4]


def test_a_place_is_the_start_of_a_digest():
    assert place("generate.init", 0) == 0x354FC0DF
    assert len({place(form, n) for form in ("train", "generate.step") for n in range(1000)}) == 2000


def test_a_draw_depends_on_seed_place_and_salt_and_on_nothing_else():
    def of(seed=SEED, first=0, salt=0, more=()):
        b = DrawBuilder(Builder().input("seed", TensorType((2,), "u32")), count(first))
        return evaluate([b("random-bits", b.const(salt, "i64"), shape=(8, *more))], {"seed": seed})[0]

    np.testing.assert_array_equal(of(), of())
    np.testing.assert_array_equal(of(more=(2,)).reshape(-1)[:8], of())  # a longer draw begins like a shorter one
    for other in (of(seed=np.array([7, 1], "uint32")), of(first=1), of(salt=1), of(salt=2**32), of(salt=-1)):
        assert (other != of()).all()


def test_two_draws_of_one_form_differ_and_no_salt_is_salt_0():
    b = builder()
    first, second = b("random-bits", shape=(8,)), b("random-bits", b.const(0, "i32"), shape=(8,))
    a, c = evaluate([first, second], {"seed": SEED})
    assert (a != c).all()
    np.testing.assert_array_equal(a, bits_ref(np, SEED, np.int64(0), (8,), 0))
    np.testing.assert_array_equal(c, bits_ref(np, SEED, np.int64(0), (8,), 1))


def near(estimate: float, exact: float, deviation: float) -> None:
    """``deviation`` of one draw; the estimate is the mean of N."""
    assert abs(estimate - exact) <= SIGMAS * deviation / N**0.5


def test_bits_are_fair_one_by_one():
    words = drawn("random-bits", shape=(N,))
    for bit in range(32):
        near(((words >> bit) & 1).mean(), 0.5, 0.5)


def test_uniform():
    u = drawn("random-uniform", shape=(N,)).astype("float64")
    assert u.min() >= 0 and u.max() < 1 and (u * 2**24 % 1 == 0).all()
    near(u.mean(), 1 / 2, (1 / 12) ** 0.5)
    near((u**2).mean(), 1 / 3, (4 / 45) ** 0.5)
    near((u[1:] * u[:-1]).mean(), 1 / 4, (7 / 144) ** 0.5)  # neighbours are not correlated
    counts = np.histogram(u, 100, (0, 1))[0]
    chi = ((counts - N / 100) ** 2 / (N / 100)).sum()
    assert abs(chi - 99) < SIGMAS * (2 * 99) ** 0.5


def test_normal():
    z = drawn("random-normal", shape=(N,)).astype("float64")
    assert np.isfinite(z).all() and 4 < np.abs(z).max() < 5.8  # sqrt(-2 log 2^-24) = 5.77
    for power, exact in ((1, 0), (2, 1), (3, 0), (4, 3)):
        moments = {1: 1, 2: 2, 3: 15, 4: 96}  # variances of z, z^2, z^3, z^4
        near((z**power).mean(), exact, moments[power] ** 0.5)


def given_words(monkeypatch, b: DrawBuilder, *words: np.ndarray, shared: np.ndarray) -> dict[str, np.ndarray]:
    """Feeds of a graph whose draws are ``words`` in turn, and ``shared`` what a draw's words share."""
    ins = [b.input(f"words{i}", TensorType(w.shape, "u32")) for i, w in enumerate(words)]
    beside = b.input("shared", TensorType(shared.shape, "u32"))
    rest = iter(ins)
    monkeypatch.setattr(b, "draw", lambda shape, salt: next(rest))
    monkeypatch.setattr(b, "draw_beside", lambda salt: beside)
    return {"seed": SEED, "shared": shared, **{v.name: w for v, w in zip(ins, words, strict=True)}}


def words_of(low: int, high: int, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, "uint64").astype("uint32")


def test_normal_is_finite_at_both_ends_of_its_uniform(monkeypatch):
    ends, shared = np.array([0, 0, 2**32 - 1], "uint32"), np.array([0, 2**32 - 1, 0], "uint32")
    b = builder()
    feeds = given_words(monkeypatch, b, ends, np.zeros(3, "uint32"), shared=shared)
    (z,) = evaluate([b("random-normal", shape=(3,))], feeds)
    np.testing.assert_allclose(z, [(112 * np.log(2)) ** 0.5, (64 * np.log(2)) ** 0.5, 0], atol=1e-6)
    got = evaluate([unit(b, b("constant", data=(0, 2**24 - 1, 2**24), dtype="u32"))], {})[0]
    np.testing.assert_array_equal(got, np.array([0.0, 1 - 2.0**-24, 1.0], "float32"))


@pytest.mark.parametrize("far", [5.5, 5.77, 6.0, 6.5, 7.0])
def test_the_tails_of_normal_draws_hold(monkeypatch, far):
    """Of draws in the first 16 cells, 2^-20 of all, by their radius: P(r > far) = exp(-far^2 / 2)."""
    b = builder()
    words, shared = words_of(0, 2**12, N), words_of(0, 2**32, N, seed=2)
    feeds = given_words(monkeypatch, b, words, np.zeros(N, "uint32"), shared=shared)
    (z,) = evaluate([b("random-normal", shape=(N,))], feeds)
    p = np.exp(-(far**2) / 2) * 2.0**20
    near((z > far).mean(), p, (p * (1 - p)) ** 0.5)


@pytest.mark.parametrize("p", [1e-12, 1e-10, 1e-9, 3e-8])
def test_small_probabilities_hold_in_bernoulli_draws(monkeypatch, p):
    """Of draws in the first cell, 2^-24 of all, or for the smallest in its first step, 2^-32."""
    b, share = builder(), 2.0**24 if p > 1e-9 / 2 else 2.0**32
    feeds = given_words(monkeypatch, b, words_of(0, round(2**32 / share), N), shared=words_of(0, 2**32, N, seed=2))
    (hits,) = evaluate([b("random-bernoulli", b.const(p, "f32"), shape=(N,))], feeds)
    want = min(1.0, p * share)
    near(hits.mean(), want, (want * (1 - want)) ** 0.5)


@pytest.mark.parametrize("p", [1e-12, 1e-11, 3e-8, 1e-7, 1e-6])
def test_small_probabilities_hold_in_categorical_draws(monkeypatch, p):
    """The unlikely class has the words of the largest noise alone, of which there are 1 in ``share``."""
    b, share = builder(), 2.0**32 if p < 1e-10 else 2.0**16
    step = 2.0**32 / share
    unlikely = 2**32 - 1 - words_of(0, int(step), N, seed=2)
    words = np.stack([words_of(0, 2**32, N), unlikely.astype("uint32")], 1)
    feeds = given_words(monkeypatch, b, words, shared=words_of(0, 2**32, N, 1, seed=3))
    logits = b("broadcast", b("constant", data=(0.0, float(np.log(p))), dtype="f32"), shape=(N, 2))
    (picks,) = evaluate([b("random-categorical", logits)], feeds)
    want = p * share  # of the odds p : 1, to within p itself
    near(picks.mean(), want, (want * (1 - want)) ** 0.5)


@pytest.mark.parametrize("make", [
    lambda b: b("random-categorical", b.full(0.0, TensorType((4,), "f32"))),
    lambda b: b("random-bernoulli", b.const(0.5, "f32"), shape=(4,)),
])  # fmt: skip
def test_what_a_draw_looks_up_beside_its_place_moves_no_other_draw(make):
    b = builder()
    make(b)
    np.testing.assert_array_equal(drawn("random-bits", b=b, shape=(8,)), bits_ref(np, SEED, np.int64(0), (8,), 1))


def test_bernoulli():
    b = builder()
    p = b("constant", data=(0.0, 0.3, 1.0), dtype="f32")
    hits = drawn("random-bernoulli", p, b=b, shape=(N, 3)).mean(0)
    assert hits[0] == 0 and hits[2] == 1
    near(hits[1], 0.3, 0.21**0.5)


def test_categorical():
    b = builder()
    p = np.array([0.5, 0.2, 0.0, 0.3])
    logits = b("constant", data=(*np.log(p[:2]).tolist(), -1e9, float(np.log(p[3]))), dtype="f32")
    picks = drawn("random-categorical", b("broadcast", logits, shape=(N, 4)), b=b)
    assert picks.dtype == np.int32
    for k in range(4):
        near((picks == k).mean(), p[k], (p[k] * (1 - p[k])) ** 0.5)


def test_a_far_logit_is_never_drawn_even_where_the_noise_is_extreme(monkeypatch):
    """The smallest and the largest words give the extreme noise: 0 beside -1e9 wins against both."""
    for low, high in ((0, 2**32 - 1), (2**32 - 1, 0)):
        b = builder()
        feeds = given_words(monkeypatch, b, np.array([low, high], "uint32"), shared=np.zeros((), "uint32"))
        assert evaluate([b("random-categorical", b("constant", data=(0.0, -1e9), dtype="f32"))], feeds)[0] == 0


def test_dropout_keeps_the_mean_and_rate_0_is_the_identity():
    b = builder()
    x = b.full(2.0, TensorType((N,), "f32"))
    assert b("dropout", x, rate=0) is x
    y = drawn("dropout", x, b=b, rate=0.25).astype("float64")
    assert set(np.unique(y)) == {0.0, float(np.float32(2) * np.float32(1 / 0.75))}
    near((y == 0).mean(), 0.25, 0.1875**0.5)


@pytest.mark.parametrize(("make", "fault", "said"), [
    (lambda b: b("random-uniform", b.const(1.5, "f32"), shape=(2,)), TypeFault, "a salt is an integer"),
    (lambda b: b("random-uniform", b("iota", shape=(2,)), shape=(2,)), ShapeFault, "must be a scalar"),
    (lambda b: b("random-bernoulli", b("iota", shape=(2,)), shape=(2,)), TypeFault, "a probability is a float"),
    (lambda b: b("random-bernoulli", b.full(0.5, TensorType((3, 2), "f32")), shape=(2,)), ShapeFault,
     "does not broadcast to [2]"),
    (lambda b: b("random-categorical", b.const(1.0, "f32")), ShapeFault, "need an axis to choose from"),
    (lambda b: b("dropout", b.const(1.0, "f32"), rate=1.0), ShapeFault, "the rate is 1.0"),
])  # fmt: skip
def test_faults_are_worded_for_the_user(make, fault, said):
    with pytest.raises(fault) as caught:
        make(builder())
    assert said in str(caught.value)
