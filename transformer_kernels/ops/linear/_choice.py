# SPDX-License-Identifier: MIT
"""Asks C++ who multiplies in a linear layer: ours, on contiguous operands ("packed"), PyTorch's
product, or one for each of its products (:mod:`._routed`).

Times that were measured on this machine decide, and without them rules: both are C++'s
(``csrc/linear/choice.h``). Its answers are kept, so that calls like one before ask nobody. Here
stands only what C++ cannot see: what follows a call, and what tensors are.
``backend="cpu"`` or ``"cuda"`` runs ours without asking.
"""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _times
from ..._errors import DTYPES_OF_CPP
from ..._library import c_function, have_kernels_for, log_dispatch, logs_dispatch
from ..._torch import has_dispatch_mode, is_eager, is_fake, refuses_cublas
from .._kinds import PLAIN_CLASSES, PLAIN_OR_NONE, is_plain
from ._tuned import Asked, Routes

_ALIGNMENT = 16  # bytes: what an address is told by
_MOST_CHOICES = 4096  # kept; then all are forgotten
_LONGEST = 256  # of a reason
_DTYPES = {dtype: code for code, dtype in enumerate(DTYPES_OF_CPP)}


class Choice(NamedTuple):
    reason: str | None  # why PyTorch's product runs; None where ours does
    routes: Routes | None = None  # if not all products are ours


class Question(IntEnum):
    """The questions that C++ answers (csrc/torch/linear/choice.cpp)."""

    CHOICE = 0
    RULES = 1
    REFUSAL = 2
    REFUSAL_OF_FEW_ROWS = 3
    IDLE = 4
    ONEDNN = 5
    DESCRIPTION = 6


class _Answer(NamedTuple):
    ours: bool
    by_times: bool
    reason: str
    routes: Routes | None


_LOGS = logs_dispatch()
_ASK = c_function("tfk_choose")


def _facts() -> tuple[int, ...]:
    """Whether PyTorch's products are fast on this processor, and the bounds of little ones."""
    facts = (ctypes.c_int64 * 4)(1, 1, 0, 0)
    function = c_function("tfk_linear_facts")
    if function is not None:
        capability = torch.backends.cpu.get_cpu_capability()
        function(torch.backends.mkl.is_available(), capability == "AVX512", facts)
    return tuple(facts)


def _has_tiles() -> bool:
    """Whether the processor has AMX, and PyTorch was built with oneDNN."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_amx_tile_supported()


*_blas, _LITTLE_WEIGHT, _LITTLE_PRODUCTS = _facts()
# Whether PyTorch's products are fast, whether they fill the units, and whether they have tiles.
BLAS = (*_blas, int(_has_tiles()))

_reasons: dict[Any, str | None] = {}
_kept: dict[Any, tuple[Choice, str | None]] = {}  # choices and lines of the log, by what decided


# ---- the question -------------------------------------------------------------------------------


def _rows(x: Tensor) -> int:
    shape = x.shape
    return x.numel() // (shape[-1] or 1) if shape else 1


def _dtype_in_products(x: Tensor) -> torch.dtype:
    """The dtype of ``x`` in products: its own, or autocast's."""
    lowered = torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64
    return torch.get_autocast_dtype(x.device.type) if lowered else x.dtype


def _described(weight: Tensor | None) -> tuple[int, ...]:
    if weight is None:
        return (0,)
    dtype, dim = _DTYPES.get(_dtype_in_products(weight), -1), weight.dim()
    if dim != 2 or weight.layout is not torch.strided:
        return (1, dtype, 0, 0, 0, 0, 0, 0)
    known = weight.is_cuda and not is_fake(weight)
    address = weight.data_ptr() % _ALIGNMENT if known else 0
    return (1, dtype, dim, *weight.shape, *weight.stride(), address)


def ask(
    question: Question, x: Tensor, *weights: Tensor | None, activated: bool = False
) -> _Answer:  # fmt: skip
    """Asks C++ about a layer with these weights: its own, that of the next layer, and up's."""
    if _ASK is None:
        return _Answer(False, False, "the library in use is older than the package", None)
    trained = [torch.is_grad_enabled() and t is not None and t.requires_grad
               for t in (x, *weights[:1])]  # fmt: skip
    numbers = [
        question, x.is_cuda, x.device.index or 0, *BLAS, _DTYPES.get(_dtype_in_products(x), -1),
        _rows(x), x.shape[-1] if x.dim() else -1, *trained, activated, refuses_cublas(),
    ]  # fmt: skip
    for weight in weights[: 3 if x.is_cuda else 1]:
        numbers += _described(weight)
    machine = _times.machine_of(x.device) if _times.Kept.any else ""
    routes, text = (ctypes.c_int64 * 3)(), ctypes.create_string_buffer(_LONGEST)
    packed = struct.pack(f"{len(numbers)}q", *map(int, numbers))
    found = _ASK(machine.encode(), packed, len(numbers), routes, text, _LONGEST)
    reason = text.value.decode()
    if found < 0:
        raise RuntimeError(reason)
    chosen = Routes(*routes)
    return _Answer(bool(found & 1), bool(found & 2), reason, None if chosen == Routes() else chosen)


# ---- what C++ cannot see ------------------------------------------------------------------------


def _why_no_kernel(x: Tensor, weight: Tensor, fakes: bool) -> str | None:
    if not is_eager():
        return "a graph or a transform follows the call"
    if not fakes and not (is_plain(x) and is_plain(weight)):
        return "an operand is more than memory"
    if not have_kernels_for(x):
        return "no kernel for this device"
    on_cpu = x.is_cpu and torch.is_autocast_enabled("cpu")
    return "autocast is on" if on_cpu else None


def why_not(
    x: Tensor, weight: Tensor, *others: Tensor | None, activated: bool = False, fakes: bool = False
) -> str | None:  # fmt: skip
    """The reason why only PyTorch's product can run; None where ours can."""
    reason = _why_no_kernel(x, weight, fakes)
    if reason is not None:
        return reason
    return ask(Question.REFUSAL, x, weight, *others, activated=activated).reason or None


def reason_by_sizes(question: Question, x: Tensor, *weights: Tensor) -> str | None:
    """C++'s reason, if it has one, to a question that sizes, dtypes and the device decide."""
    key = (question, x.shape, x.device, _dtype_in_products(x), BLAS, *(w.shape for w in weights))
    if key not in _reasons:
        if len(_reasons) >= _MOST_CHOICES:
            _reasons.clear()
        _reasons[key] = ask(question, x, *weights).reason or None
    return _reasons[key]


def why_not_few_rows(x: Tensor) -> str | None:
    """The reason why few-row kernels cannot run, whatever the weight's format; None where they
    can."""
    return reason_by_sizes(Question.REFUSAL_OF_FEW_ROWS, x)


def leaves_processors_idle(x: Tensor, weight: Tensor) -> bool:
    return reason_by_sizes(Question.IDLE, x, weight) is not None


def is_little(op: str, x: Tensor, *weights: Tensor) -> bool:
    """Whether the rules leave every product to PyTorch because it is small, on a CPU. Few questions
    decide: :func:`choose` may ask for longer than such a product takes. Of weights only the size is
    asked, because PyTorch takes or refuses every other kind."""
    if Asked.measure or _times.Kept.any or type(x) not in PLAIN_CLASSES:
        return False
    if not x.is_cpu or x.is_nested or not is_eager():
        return False
    numbers = 0
    try:
        for weight in weights:
            numbers = max(numbers, weight.numel())
            if weight.dtype is not x.dtype:
                return False
    except AttributeError:  # an operand is no tensor
        return False
    if numbers >= _LITTLE_WEIGHT or _rows(x) * numbers >= _LITTLE_PRODUCTS:
        return False
    if _LOGS:
        log_dispatch(f"{op}: packed refused: the product is small; PyTorch's product runs")
    return True


# ---- the choice ---------------------------------------------------------------------------------


def refusal(op: str, x: Tensor, weight: Tensor, *others: Tensor | None, **how: bool) -> str | None:
    """The reason why PyTorch's product runs; None where ours does. Arguments are those of
    :func:`choose`."""
    return choose(op, x, weight, *others, **how).reason


def choose(
    op: str, x: Tensor, weight: Tensor, *others: Tensor | None, activated: bool = False,
    by_rules: bool = False, fakes: bool = False,
) -> Choice:  # fmt: skip
    """Chooses who multiplies.

    Args:
        others: the weight of a following layer, and the weight beside ``weight`` if that is a gate.
        activated: whether an activation is part of the product.
        by_rules: whether to ignore measured times, because products of other sizes will run.
        fakes: whether fake tensors count as the real tensors that they stand for.
    """
    key = None
    if not fakes and Asked.measure is None and is_eager():
        key = _key(activated, by_rules, x, weight, *others)
    found = None if key is None else _kept.get(key)
    if found is None:
        found = _chosen(x, weight, others, activated, by_rules, fakes)
        if key is not None:
            _keep(key, found)
    if _LOGS and found[1] is not None:
        log_dispatch(f"{op}: packed {found[1]}")
    return found[0]


def _key(activated: bool, by_rules: bool, x: Tensor, *weights: Tensor | None) -> Any:
    """All that decides who multiplies, of an eager call; None where a tensor is not memory."""
    if not PLAIN_OR_NONE.issuperset(map(type, (x, *weights))):
        return None
    try:
        on_cuda = x.is_cuda
        kind = "cuda" if on_cuda else "cpu"
        key: list[Any] = [
            activated, by_rules, _times.Kept.stamp, x.layout, x.shape, x.dtype, x.device,
            x.requires_grad, torch.is_grad_enabled(), torch.is_autocast_enabled(kind),
            (torch.get_autocast_dtype(kind), refuses_cublas())
            if on_cuda else (BLAS, torch.get_num_threads()),
        ]  # fmt: skip
        for t in weights:
            if t is None:
                key.append(None)
                continue
            address = t.data_ptr() % _ALIGNMENT if on_cuda and t.is_cuda else 0
            key += (t.layout, t.shape, t.stride(), t.dtype, t.requires_grad, address)
    except (RuntimeError, AttributeError):
        return None
    return tuple(key)


def _keep(key: Any, found: tuple[Choice, str | None]) -> None:
    if len(_kept) >= _MOST_CHOICES:
        _kept.clear()
    _kept[key] = found


def _of_torch(reason: str) -> tuple[Choice, str]:
    return Choice(reason), f"refused: {reason}; PyTorch's product runs"


def _chosen(
    x: Tensor, weight: Tensor, others: tuple[Tensor | None, ...], activated: bool, by_rules: bool,
    fakes: bool,
) -> tuple[Choice, str | None]:  # fmt: skip
    reason = _why_no_kernel(x, weight, fakes)
    if reason is not None:
        return _of_torch(reason)
    by_rules = by_rules or _times.mode() is False
    question = Question.RULES if by_rules else Question.CHOICE
    answer = ask(question, x, weight, *others, activated=activated)
    if Asked.measure is not None and not (by_rules or answer.by_times):
        able = ask(Question.REFUSAL, x, weight, *others, activated=activated).ours
        if able and _is_measurable(x, weight):
            timed, dtype = timed_as(x, weight, activated=activated), _dtype_in_products(x)
            times = Asked.measure(x.detach().to(dtype), weight.detach().to(dtype), timed)
            _times.keep(_times.machine_of(x.device), timed, times.named())
            answer = ask(question, x, weight, *others, activated=activated)
    if not answer.ours:
        return _of_torch(answer.reason)
    return Choice(None, answer.routes), f"runs: {answer.reason}" if answer.by_times else None


# ---- times --------------------------------------------------------------------------------------


def timed_as(x: Tensor, weight: Tensor, *, activated: bool = False) -> str:
    """The text by which times of a layer are kept."""
    return ask(Question.DESCRIPTION, x, weight, activated=activated).reason


def _is_measurable(x: Tensor, weight: Tensor) -> bool:
    """Whether the operands form a product, and nothing follows the timed calls."""
    fits = x.shape[-1] == weight.shape[1] and _dtype_in_products(weight) is _dtype_in_products(x)
    captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return fits and x.numel() * len(weight) > 0 and not captured and not has_dispatch_mode()
