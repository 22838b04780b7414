# SPDX-License-Identifier: MIT
"""The states that an optimizer keeps of each parameter, in the form that its options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import ArgumentTypeError, ArgumentValueError, as_flag, as_integer, as_number
from ..ops.optimizer import _states

STATE_DTYPES = (torch.float32, torch.bfloat16, torch.uint8)
_NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Options:
    """The options that PyTorch's optimizers lack."""

    master_weights: bool = False
    state_dtype: torch.dtype | None = None
    stochastic_weights: bool = False
    max_norm: float | None = None
    skip_nonfinite: bool = False
    seed: int = 0

    def check(self, op: str) -> None:
        for name in ("master_weights", "stochastic_weights", "skip_nonfinite"):
            as_flag(op, name, getattr(self, name))
        if self.state_dtype is not None and self.state_dtype not in STATE_DTYPES:
            raise ArgumentTypeError(
                f"{op}: state_dtype is {self.state_dtype}, expected None, torch.float32,"
                " torch.bfloat16 or torch.uint8"
            )
        if self.max_norm is not None and not as_number(op, "max_norm", self.max_norm) > 0:
            raise ArgumentValueError(f"{op}: max_norm is {self.max_norm}, expected above 0")
        as_integer(op, "seed", self.seed)

    @property
    def is_stock(self) -> bool:
        """Whether states are those of PyTorch's optimizers."""
        return not (self.master_weights or self.state_dtype or self.stochastic_weights)

    def has_master(self, p: Tensor) -> bool:
        return self.master_weights and p.dtype in _NARROW

    def dtype_of(self, p: Tensor) -> torch.dtype:
        """The dtype of the moments of ``p``: its own, unless it has a master or they have one."""
        if p.dtype is torch.float64:
            return p.dtype
        own = torch.float32 if self.has_master(p) else p.dtype
        return self.state_dtype or own

    def fresh(self, p: Tensor, moments: Sequence[str]) -> dict[str, Tensor]:
        """The moments of ``p`` before its first step, and its master."""
        dtype = self.dtype_of(p)
        state: dict[str, Tensor] = {}
        for name in moments:
            if dtype is torch.uint8:
                codes = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
                state[codes_of(name)] = codes
                state[scales_of(name)] = _states.scales_of(codes)
            else:
                state[name] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        if self.has_master(p):
            state["master"] = p.detach().to(torch.float32, copy=True)
        return state

    def adapted(self, p: Tensor, saved: dict[str, Any], moments: Sequence[str]) -> dict[str, Any]:
        """A loaded state in the form of these options: what has it already is kept bit for bit."""
        state: dict[str, Any] = {}
        for name in moments:
            state.update(self._moment(p, name, saved))
        if self.has_master(p):
            wide = p.device, torch.float32
            has = "master" in saved
            state["master"] = saved["master"].to(*wide) if has else p.detach().to(*wide, copy=True)
        known = {"master", *moments, *map(codes_of, moments), *map(scales_of, moments)}
        others = {k: v for k, v in saved.items() if k not in known}
        if isinstance(others.get("step"), Tensor):  # PyTorch's foreach counts on the host
            others["step"] = others["step"].to(p.device)
        return {**others, **state}

    def _moment(self, p: Tensor, name: str, saved: dict[str, Any]) -> dict[str, Tensor]:
        codes, scales = codes_of(name), scales_of(name)
        dtype = self.dtype_of(p)
        if name not in saved and codes not in saved:
            return {}
        if dtype is torch.uint8 and codes in saved:
            return {k: saved[k].to(p.device) for k in (codes, scales)}
        signed = name == "exp_avg"
        if codes in saved:
            flat = _states.decode(_flat(saved[codes]), saved[scales], signed)
            dense = flat.as_strided(saved[codes].shape, saved[codes].stride())
        else:
            dense = saved[name]
        dense = dense.to(p.device, torch.float32 if dtype is torch.uint8 else dtype)
        if dtype is not torch.uint8:
            return {name: dense}
        halves = torch.full((dense.numel(),), 1 << 15, device=dense.device)  # to the nearest
        flat, of_blocks = _states.encode(_flat(dense), halves, signed)
        return {codes: flat.as_strided(dense.shape, dense.stride()), scales: of_blocks}


def codes_of(moment: str) -> str:
    return f"{moment}_codes"


def scales_of(moment: str) -> str:
    return f"{moment}_scales"


def _flat(x: Tensor) -> Tensor:
    return x.as_strided((x.numel(),), (1,))
