# SPDX-License-Identifier: MIT
"""Steps of AdamW over lists of tensors. A shape is TENSORSxELEMENTS of each; 148 tensors are
GPT-2's of 124M parameters, 292 those of 355M. ``torch`` is the fused step, ``foreach`` the other
one.

A benchmark repeats a step and compares what it leaves. So the settings make a step that can be
repeated: without memory, and with weights that decay at once. All that a step computes is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_kernels.measure.case import Arguments, Build, Case
from transformer_kernels.measure.derive import grid, no_compiled_backward, whole
from transformer_kernels.measure.sweeps import Shape
from transformer_kernels.measure.timing import Call
from transformer_kernels.optim import AdamW

_SETTINGS: dict[str, Any] = {"lr": 1.0, "betas": (0.0, 0.0), "eps": 1.0, "weight_decay": 1.0}
_MAX_NORM = 1.0
_GRID = grid(
    "148x837888 (tensors, elements of each)", 2,
    quick=[(12, 65536)],
    headline={
        "cuda": [(148, 840000), (292, 1215000), (1, 64000000), (1000, 1000)],
        "cpu": [(148, 840000), (1, 124000000)],
    },
    small=[(148, 1000)],
    full=[(148, 1000), (1000, 1000), (148, 30000), (148, 840000), (1, 124000000)],
)  # fmt: skip

Make = Callable[[list[torch.nn.Parameter]], Any]  # an optimizer, or what has its step()


def _settings(params: list[torch.nn.Parameter]) -> dict[str, Any]:
    return {**_SETTINGS, "capturable": params[0].is_cuda}  # CUDA graphs are timed there


def _reference(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    return (-g / (g.abs() + 1),)


def _clipped_reference(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return _reference(p, g * (_MAX_NORM / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1))


def _by(make: Make, clips: bool = False) -> Build:
    """Builds a step on tensors of its own, which returns the weights."""

    def build(arguments: Arguments) -> Call:
        weights = arguments["p"].clone()
        gradients = arguments["g"].clone()
        params = [torch.nn.Parameter(row) for row in weights.unbind()]
        for p, grad in zip(params, gradients.unbind(), strict=True):
            p.grad = grad
        optimizer = make(params)

        def call() -> Tensor:
            if clips:
                torch.nn.utils.clip_grad_norm_(params, _MAX_NORM)
            optimizer.step()
            return weights

        return call

    return build


class _MasterStep:
    """AdamW on float32 masters in PyTorch's operations: gradients are widened before the step, and
    weights rounded after it."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        self._params = [p.detach() for p in params]
        self._gradients = [p.grad for p in params if p.grad is not None]
        self._masters = [torch.nn.Parameter(p.detach().float()) for p in params]
        self._wide = [torch.empty_like(p) for p in self._masters]
        for master, grad in zip(self._masters, self._wide, strict=True):
            master.grad = grad
        self._optimizer = torch.optim.AdamW(self._masters, fused=True, **_settings(self._masters))

    def step(self) -> None:
        torch._foreach_copy_(self._wide, self._gradients)
        self._optimizer.step()
        torch._foreach_copy_(self._params, [m.detach() for m in self._masters])


def _case(
    name: str,
    forward: dict[str, Build],
    bytes_of: Callable[[Tensor], int],
    reference: Callable[..., tuple[Tensor, ...]] = _reference,
    feature: bool = True,
) -> Case:
    def sizes(_: str, shape: Shape) -> Shape:
        return shape

    return Case(
        name=name,
        key="optimizer/adamw",
        inputs=("p", "g"),
        parameters=(),
        outputs=("p",),
        reference=reference,
        functions={},
        backward={},
        compiled_backward=no_compiled_backward(name),
        forward=forward,
        grid=_GRID,
        sizes=sizes,
        verified=whole,
        feature=feature,
        moved=lambda _, arguments: bytes_of(arguments["p"]),
    )


def _fused(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, fused=True, **_settings(params))


def _foreach(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, foreach=True, **_settings(params))


def _ours(**options: Any) -> Make:
    return lambda params: AdamW(params, **_settings(params), **options)


OPS = (
    # The weights and two moments are read and written, and the gradients read.
    _case(
        "adamw",
        {"torch": _by(_fused), "foreach": _by(_foreach), "ours": _by(_ours())},
        lambda p: 7 * p.nbytes,
        feature=False,
    ),
    # Here the gradients are read for their norm before that.
    _case(
        "clipped_adamw",
        {
            "torch": _by(_fused, clips=True),
            "foreach": _by(_foreach, clips=True),
            "ours": _by(_ours(max_norm=_MAX_NORM)),
        },
        lambda p: 8 * p.nbytes,
        _clipped_reference,
    ),
    # Masters and moments are float32; weights are written alone.
    _case(
        "master_adamw",
        {"torch": _by(_MasterStep), "ours": _by(_ours(master_weights=True))},
        lambda p: 24 * p.numel() + 2 * p.nbytes,
    ),
    _case(
        "bfloat16_adamw",
        {"ours": _by(_ours(state_dtype=torch.bfloat16))},
        lambda p: 8 * p.numel() + 3 * p.nbytes,
    ),
    _case(
        "uint8_adamw",
        {"ours": _by(_ours(state_dtype=torch.uint8))},
        lambda p: 4 * p.numel() + 3 * p.nbytes,
    ),
)
