"""Binds phases by the kind and name of their ports: a call takes its inputs from an environment of named tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping

from attrs import frozen

from ..device.interface import Call, Device, Handle
from ..format.manifest import Manifest, Phase

Key = tuple[str, str]
Env = Mapping[Key, Handle]


@frozen(eq=False)
class Bound:
    """``phase`` as a function from an environment to its outputs by (kind, name).

    input_index: key of an input -> its position in ``inputs``
    returned:    the outputs of ``call``
    carried:     (output, input) of one key: the state that a call hands to the next
    aliased:     (output, input) where the output is the input's own tensor
    """

    phase: Phase
    call: Call
    inputs: tuple[Key, ...]
    input_index: Mapping[Key, int]
    returned: tuple[Key, ...]
    carried: tuple[tuple[int, int], ...]
    aliased: tuple[tuple[Key, int], ...]

    def __call__(self, env: Env) -> dict[Key, Handle]:
        """Every output; one that is written in place is the input's own tensor."""
        arguments = [env[key] for key in self.inputs]
        return self._named(arguments, self.call(arguments))

    def repeat(
        self, env: MutableMapping[Key, Handle], key: Key, values: Iterable[Handle], look: Callable[[], None]
    ) -> dict[Key, Handle]:
        """The outputs of the last of several calls, one for each of ``values``, passed as the input ``key``. Each call
        gets the carried outputs of the call before; ``env`` no longer holds the carried inputs. ``look`` runs before
        each call."""
        position, call, carried = self.input_index.get(key), self.call, self.carried
        arguments = [None if i == position else env[name] for i, name in enumerate(self.inputs)]
        for _, i in carried:
            del env[self.inputs[i]]
        results: tuple[Handle, ...] = ()
        for value in values:
            look()
            if position is not None:
                arguments[position] = value
            results = call(arguments)
            for n, i in carried:
                arguments[i] = results[n]
        return self._named(arguments, results)

    def _named(self, arguments: list[Handle], results: tuple[Handle, ...]) -> dict[Key, Handle]:
        named = dict(zip(self.returned, results, strict=True))
        for key, i in self.aliased:
            named[key] = arguments[i]
        return named

    def reads(self, kind: str) -> list[str]:
        return [name for k, name in self.inputs if k == kind]


def bind(device: Device, phase: Phase) -> Bound:
    """``phase`` of the device's library, its ports looked up once for all calls."""
    inputs = tuple(port.key for port in phase.inputs)
    input_index, pairs = {key: i for i, key in enumerate(inputs)}, dict(phase.in_place)
    returned = tuple(port.key for i, port in enumerate(phase.outputs) if i not in pairs)
    carried = tuple((n, input_index[key]) for n, key in enumerate(returned) if key in input_index)
    aliased = tuple((phase.outputs[o].key, i) for o, i in phase.in_place)
    return Bound(phase, device.phase(phase.name), inputs, input_index, returned, carried, aliased)


def bind_all(device: Device, manifest: Manifest) -> dict[str, Bound]:
    """name -> ``Bound`` of every phase of the manifest."""
    return {phase.name: bind(device, phase) for phase in manifest.phases}


def of_kind(outputs: Mapping[Key, Handle], kind: str) -> dict[str, Handle]:
    """name -> tensor of the outputs of one kind, in the phase's order."""
    return {name: handle for (k, name), handle in outputs.items() if k == kind}
