"""Phases bound by the kind and name of their ports: a call takes its inputs from an environment of named tensors."""

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

    places: of each input among ``inputs``; returned: the outputs of ``call``; fed: (output, input) of one name;
    shared: (output, input) where the output is the input's own tensor
    """

    phase: Phase
    call: Call
    inputs: tuple[Key, ...]
    places: Mapping[Key, int]
    returned: tuple[Key, ...]
    fed: tuple[tuple[int, int], ...]
    shared: tuple[tuple[Key, int], ...]

    def __call__(self, env: Env) -> dict[Key, Handle]:
        """Every output; one that is written in place is the input's own tensor."""
        given = [env[key] for key in self.inputs]
        return self._named(given, self.call(given))

    def repeat(
        self, env: MutableMapping[Key, Handle], key: Key, values: Iterable[Handle], before: Callable[[], None]
    ) -> dict[Key, Handle]:
        """The outputs of the last of several calls: one for each of ``values``, as the input ``key``, with the outputs
        of the call before in the place of the inputs they are named like, which ``env`` then holds no more. ``before``
        is called before each."""
        place, call, fed = self.places.get(key), self.call, self.fed
        given = [None if i == place else env[name] for i, name in enumerate(self.inputs)]
        for _, i in fed:
            del env[self.inputs[i]]
        made: tuple[Handle, ...] = ()
        for value in values:
            before()
            if place is not None:
                given[place] = value
            made = call(given)
            for n, i in fed:
                given[i] = made[n]
        return self._named(given, made)

    def _named(self, given: list[Handle], made: tuple[Handle, ...]) -> dict[Key, Handle]:
        out = dict(zip(self.returned, made, strict=True))
        for key, i in self.shared:
            out[key] = given[i]
        return out

    def reads(self, kind: str) -> list[str]:
        return [name for k, name in self.inputs if k == kind]


def bind(device: Device, phase: Phase) -> Bound:
    """``phase`` of the device's library, its ports looked up once for all calls."""
    inputs = tuple(port.key for port in phase.inputs)
    places, pairs = {key: i for i, key in enumerate(inputs)}, dict(phase.in_place)
    returned = tuple(port.key for i, port in enumerate(phase.outputs) if i not in pairs)
    fed = tuple((n, places[key]) for n, key in enumerate(returned) if key in places)
    shared = tuple((phase.outputs[o].key, i) for o, i in phase.in_place)
    return Bound(phase, device.phase(phase.name), inputs, places, returned, fed, shared)


def bind_all(device: Device, manifest: Manifest) -> dict[str, Bound]:
    """name -> ``Bound`` of every phase of the manifest."""
    return {phase.name: bind(device, phase) for phase in manifest.phases}


def of_kind(outputs: Mapping[Key, Handle], kind: str) -> dict[str, Handle]:
    """name -> tensor of the outputs of one kind, in the phase's order."""
    return {name: handle for (k, name), handle in outputs.items() if k == kind}
