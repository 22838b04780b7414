# SPDX-License-Identifier: MIT
"""Random numbers of a rank's own, for dropout of what only this rank has.

What every rank has is dropped alike: their generators stand at the same place. Between the layers
of a group each rank has other heads or channels, whose masks must not repeat those of the others.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: seeds of ranks lie far apart


def generator_of(device: torch.device) -> torch.Generator:
    """PyTorch's default generator of the device."""
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    found: torch.Generator = module.default_generators[index]
    return found


def place_of(generator: torch.Generator) -> int:
    """A number that tells states of a generator apart."""
    return zlib.crc32(generator.get_state().numpy().tobytes())


class Fork:
    """Gives the default generator a seed of the rank's own between :meth:`begin` and :meth:`end`,
    made from where it stands."""

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self._rank = mesh.get_local_rank()
        self._device = device
        self._state: torch.Tensor | None = None

    def begin(self, draws: bool = True) -> None:
        """Begins where the model ``draws`` numbers; what a backward pass has computed again, and
        not to its end, is over in any case."""
        self._state = None
        if not draws:
            return
        generator = generator_of(self._device)
        self._state = generator.get_state()
        seed = place_of(generator) + (self._rank + 1) * _STEP
        generator.manual_seed(seed % 2**63)

    def end(self) -> None:
        if self._state is None:
            return
        generator = generator_of(self._device)
        generator.set_state(self._state)
        self._state = None
        torch.rand(1, device=self._device, generator=generator)  # the next begins elsewhere

    def end_of_pass(self, *_: Any) -> None:
        """Ends what a pass through the model has left open, because it has raised. A hook of the
        model."""
        self.end()
