# SPDX-License-Identifier: MIT
"""The base of optimizers that update lists of tensors in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._errors import FLOATING, MAX_RANK, dtype_name, translate
from ..ops.optimizer import _formula
from ._states import Options

_RATES = (torch.float32, torch.float64)


class Entry(NamedTuple):
    """A parameter with a gradient."""

    group: int
    number: int  # its place among all parameters
    param: Tensor
    grad: Tensor
    state: dict[str, Any]


@dataclass
class _Boxed:
    """A loaded tensor that PyTorch is not to cast to the dtype of its parameter."""

    tensor: Tensor


class Scaling(NamedTuple):
    """The divisor of the gradients, and whether a step is skipped; as GradScaler says."""

    grad_scale: Tensor | None
    found_inf: Tensor | None

    def on(self, device: torch.device) -> Scaling:
        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, torch.float32, non_blocking=True)

        return Scaling(moved(self.grad_scale), moved(self.found_inf))


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """The loss that a step's closure computes anew, with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class ListOptimizer(Optimizer):
    """An optimizer whose step is one raw op over lists of tensors.

    A subclass names its raw op and moments, and says the settings of a group.
    """

    _step_supports_amp_scaling = True
    _raw: Any
    _moments: tuple[str, ...]
    options: Options
    grad_norm: Tensor | None = None

    def _settings(self, group: dict[str, Any]) -> tuple[float, ...]:
        raise NotImplementedError

    def _moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        return self._moments

    # ---- states ---------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "options": self.options, "grad_norm": self.grad_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for p in group["params"]:
                saved = self.state.get(p, {})
                if any(isinstance(value, _Boxed) for value in saved.values()):
                    tensors = {
                        n: v.tensor if isinstance(v, _Boxed) else v for n, v in saved.items()
                    }
                    self.state[p] = self.options.adapted(p, tensors, self._moments_of(group))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads states of this class, with any options, or of PyTorch's."""
        last = self.register_load_state_dict_pre_hook(_boxed)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()

    def _entries(self) -> list[Entry]:
        """The parameters that have gradients. Makes the states of those that have none yet."""
        entries = []
        number = -1
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                number += 1
                grad = p.grad
                if grad is None:
                    continue
                if grad.is_sparse or p.dtype not in FLOATING:
                    self._refuse(p, number)
                state = self.state[p]
                if not state:
                    zero = torch.zeros((), dtype=torch.float32, device=p.device)
                    state.update(step=zero, **self.options.fresh(p, self._moments_of(group)))
                entries.append(Entry(index, number, p, grad, state))
        return entries

    def _refuse(self, p: Tensor, number: int) -> NoReturn:
        name = type(self).__name__
        if p.dtype not in FLOATING:
            raise RuntimeError(
                f"{name}: parameter {number} is {dtype_name(p.dtype)}, expected a real"
                " floating-point dtype"
            )
        raise RuntimeError(
            f"{name}: the gradient of parameter {number} is sparse, expected a dense one"
            " (torch.optim.SparseAdam takes sparse ones)"
        )

    # ---- steps ----------------------------------------------------------------------------------

    def _scaling(self) -> Scaling:
        return Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))

    def _step_lists(self, entries: Sequence[Entry], scaling: Scaling, clips: bool = True) -> None:
        """Updates parameters by the raw op, with one call a device."""
        devices = {entry.param.device for entry in entries}
        if clips and len(devices) > 1:
            scaling, clips = self._clipped(entries, scaling), False
        for device in devices:
            on_device = [entry for entry in entries if entry.param.device == device]
            self._call(on_device, scaling.on(device), clips)

    def _call(self, entries: Sequence[Entry], scaling: Scaling, clips: bool) -> None:
        options = self.options
        lists = _Lists(entries)
        norm = None
        if clips and (options.max_norm or options.skip_nonfinite):
            norm = self.grad_norm = torch.zeros((), device=entries[0].param.device)
        dtype = options.state_dtype
        try:
            self._raw(
                *lists.tensors,
                self._rates(entries[0].param.device),
                [entry.group for entry in entries],
                [entry.number for entry in entries],
                self._numbers(entries[0].param.device),
                *scaling,
                (options.max_norm or 0.0) if clips else 0.0,
                clips and options.skip_nonfinite,
                scaling.grad_scale is not None,
                dtype is torch.bfloat16,
                options.stochastic_weights,
                int(options.seed),
                norm,
            )
        except RuntimeError as error:
            raise translate(type(self).__name__, error) from None
        # PyTorch counts no writes to lists; a graph that holds the old weights has to fail.
        torch.autograd.graph.increment_version([entry.param for entry in entries])
        lists.put_back()

    def _rates(self, device: torch.device) -> list[Tensor]:
        """The learning rates that the op reads where they are, one without elements for a group
        whose rate is a number; none where all are numbers."""
        given = [group["lr"] for group in self.param_groups]
        rates = [lr if _is_rate(lr, device) else None for lr in given]
        if all(rate is None for rate in rates):
            return []
        return [torch.empty(0, device=device) if rate is None else rate.detach() for rate in rates]

    def _numbers(self, device: torch.device) -> list[float]:
        """The settings of all groups; 0 for a learning rate that the op reads."""
        numbers: list[float] = []
        for group in self.param_groups:
            rate, *others = self._settings(group)
            numbers += [0.0 if _is_rate(rate, device) else float(rate), *map(float, others)]
        return numbers

    def _clipped(self, entries: Sequence[Entry], scaling: Scaling) -> Scaling:
        """The scaling that clips as well, where gradients lie on several devices."""
        options = self.options
        if not (options.max_norm or options.skip_nonfinite):
            return scaling
        device = entries[0].param.device
        scale, found = scaling.on(device)
        squares = [
            _formula.norm_of([e.grad for e in entries if e.grad.device == d], None).square()
            for d in {entry.grad.device for entry in entries}
        ]
        norm = torch.stack([s.to(device) for s in squares]).sum().sqrt()
        if scale is not None:
            norm = norm / scale.abs()
        self.grad_norm = norm.float()
        if options.skip_nonfinite:
            infinite = (~norm.isfinite()).float()
            found = infinite if found is None else torch.maximum(found, infinite)
        if options.max_norm:
            clip = (options.max_norm / (norm + _formula.CLIP_EPSILON)).clamp(max=1).float()
            scale = 1 / clip if scale is None else scale / clip
        return Scaling(scale, found)


def _is_rate(x: Any, device: torch.device) -> bool:
    """Whether a setting is a tensor that the op reads, which on CUDA the host would wait for."""
    return isinstance(x, Tensor) and x.device == device and x.dtype in _RATES


def _boxed(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    def box(name: str, value: Any) -> Any:
        return _Boxed(value) if name != "step" and isinstance(value, Tensor) else value

    states = {
        key: {name: box(name, value) for name, value in state.items()}
        for key, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


def is_dense(x: Tensor) -> bool:
    """Whether a tensor's elements fill its memory."""
    return x.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense.default(x))


# The columns of tensors that have the layout of their parameter, by the names of the states.
_LAID_OUT = (
    ("exp_avg", "exp_avg_codes"),
    ("exp_avg_sq", "exp_avg_sq_codes"),
    ("max_exp_avg_sq",),
    ("master",),
)


class _Lists:
    """The tensors of entries in the lists of the raw op. Those that are not laid out as the op
    needs them are copied, and put back after the call."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        states = [entry.state for entry in entries]
        columns: list[list[Tensor | None]] = [
            [entry.param for entry in entries],
            [entry.grad for entry in entries],
            *(_named(states, *names) for names in _LAID_OUT),
        ]
        if not _are_contiguous(columns):
            rows = [self._laid_out(list(row)) for row in zip(*columns, strict=True)]
            columns = [list(column) for column in zip(*rows, strict=True)]
        columns += [_named(states, name) for name in ("exp_avg_scales", "exp_avg_sq_scales")]
        self.tensors = [*map(_list_of, columns), [state["step"] for state in states]]

    def _laid_out(self, row: list[Tensor | None]) -> list[Tensor | None]:
        return row if _alike(row) else [None if x is None else self._packed(x) for x in row]

    def _packed(self, x: Tensor) -> Tensor:
        x = x.detach()
        flat = x.contiguous().view(-1)
        if flat.data_ptr() != x.data_ptr():
            self._copies.append((x, flat))
        return flat

    def put_back(self) -> None:
        for x, flat in self._copies:
            x.copy_(flat.view(x.shape))


def _named(states: Sequence[dict[str, Any]], *names: str) -> list[Tensor | None]:
    """The tensors that states have under the first of these names that they have."""
    column = [state.get(names[0]) for state in states]
    for name in names[1:]:
        if any(x is None for x in column):
            both = zip(column, states, strict=True)
            column = [state.get(name) if x is None else x for x, state in both]
    return column


def _list_of(column: Sequence[Tensor | None]) -> list[Tensor]:
    given = [x for x in column if x is not None]
    if len(given) in (0, len(column)):
        return given
    none = given[0].new_empty(0)
    return [none if x is None else x for x in column]


def _are_contiguous(columns: Sequence[Sequence[Tensor | None]]) -> bool:
    """Whether all tensors of all entries are, which takes less time to tell than for each entry."""
    given = [[x for x in column if x is not None] for column in columns]
    if max(map(Tensor.dim, given[0])) > MAX_RANK:
        return False
    return all(all(map(Tensor.is_contiguous, column)) for column in given)


def _alike(row: Sequence[Tensor | None]) -> bool:
    """Whether tensors have one layout, without gaps."""
    tensors = [x for x in row if x is not None]
    first = tensors[0]
    if first.dim() > MAX_RANK:
        return False
    if all(map(Tensor.is_contiguous, tensors)):
        return True
    return is_dense(first) and all(x.stride() == first.stride() for x in tensors)
