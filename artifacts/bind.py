"""Phases bound by the kind and name of their ports: a call takes its inputs from an environment of named tensors."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from .device import Call, Device, Handle
from .manifest import Manifest, Phase

Key = tuple[str, str]
Env = Mapping[Key, Handle]


@frozen(eq=False)
class Bound:
    """``phase`` as a function from an environment to its outputs by (kind, name)."""

    phase: Phase
    call: Call
    inputs: tuple[Key, ...]
    returned: tuple[Key, ...]
    shared: tuple[tuple[Key, int], ...]

    def __call__(self, env: Env) -> dict[Key, Handle]:
        """Every output; one that is written in place is the input's own tensor."""
        given = [env[key] for key in self.inputs]
        made = self.call(given)
        out = dict(zip(self.returned, made, strict=True))
        for key, i in self.shared:
            out[key] = given[i]
        return out

    def reads(self, kind: str) -> list[str]:
        return [name for k, name in self.inputs if k == kind]


def bind(device: Device, phase: Phase) -> Bound:
    pairs = dict(phase.in_place)
    returned = tuple(port.key for i, port in enumerate(phase.outputs) if i not in pairs)
    shared = tuple((phase.outputs[o].key, i) for o, i in phase.in_place)
    return Bound(phase, device.phase(phase.name), tuple(p.key for p in phase.inputs), returned, shared)


def bind_all(device: Device, manifest: Manifest) -> dict[str, Bound]:
    return {phase.name: bind(device, phase) for phase in manifest.phases}


def of_kind(outputs: Mapping[Key, Handle], kind: str) -> dict[str, Handle]:
    """name -> tensor of the outputs of one kind, in the phase's order."""
    return {name: handle for (k, name), handle in outputs.items() if k == kind}
