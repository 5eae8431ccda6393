"""The bits of a result follow from the program alone: not from the instruction set level, not from the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, te, tirx

from tests.schedules.tensor_programs import V3, V4, build, graph, numbers, product, program, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

R = relax.op
F = "float32"


def _normalize(emit: Any, x: Any) -> Any:
    centred = emit(R.subtract(x, emit(R.mean(x, [-1], True))))
    return R.divide(centred, emit(R.sqrt(emit(R.mean(emit(R.multiply(centred, centred)), [-1], True)))))


PROGRAMS = {
    "softmax": lambda: graph(lambda emit, x: R.nn.softmax(x, -1), ((65, 333), F)),
    "log-softmax": lambda: graph(lambda emit, x: R.nn.log_softmax(x, -1), ((65, 47), F)),
    "normalize": lambda: graph(_normalize, ((65, 130), F)),
    "gelu": lambda: graph(lambda emit, x: R.nn.gelu_tanh(x), ((65, 130), F)),
    "norm": lambda: graph(lambda emit, x: R.sum(emit(R.multiply(x, x))), ((650, 131), F)),
    "column reduction": lambda: graph(lambda emit, x: R.sum(x, [0]), ((3000, 45), F)),
    "product": lambda: [product("NN", 65, 130, 47)],
    "weight gradient": lambda: [product("TN", 65, 1300, 47)],
    "scores": lambda: [product("NT", 33, 47, 29, (6,))],
    "pow": lambda: [program(lambda a: te.compute((77,), lambda i: tirx.pow(tirx.const(0.999, F), a(i))), ((77,), F))],
}


def bits(built: Any) -> list[bytes]:
    made = []
    inputs = [numbers(*shape, seed=n) for n, (shape, _) in enumerate(built.params[:-1])]
    for count in (1, 2):
        threads(count)
        made.append(b"".join(out.tobytes() for out in built.run(*inputs)))
    threads(1)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads(name: str) -> None:
    for func in PROGRAMS[name]():
        assert len(set(bits(build(func)))) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_order_of_operations_is_that_of_either_level(name: str) -> None:
    """The schedules for sixteen lanes, in instructions of eight: what a machine without AVX-512 can hold of it."""
    for func in PROGRAMS[name]():
        assert len({*bits(build(func, V3)), *bits(build(func, V4, code=V3))}) == 1


@pytest.mark.skipif(not runs_here(V4), reason="this CPU has no AVX-512")
@pytest.mark.parametrize("name", PROGRAMS)
def test_levels(name: str) -> None:
    for func in PROGRAMS[name]():
        assert len({*bits(build(func, V3)), *bits(build(func, V4))}) == 1


def test_pow_is_that_of_float64() -> None:
    steps = np.arange(1, 5001, 7).astype(F)
    size = len(steps)
    func = program(lambda a: te.compute((size,), lambda i: tirx.pow(tirx.const(0.999, F), a(i))), ((size,), F))
    want = np.float64(np.float32(0.999)) ** steps.astype("float64")
    np.testing.assert_allclose(build(func).run(steps)[0], want, rtol=2.0**-23)  # 1 ulp
