# SPDX-License-Identifier: MIT
"""Chooses the product that a linear layer runs: ours, on contiguous operands ("packed"), PyTorch's,
or one for each of its products (:mod:`._routed`).

Times that were measured on this machine decide (:mod:`._tuned`). Without them, tables list the
reasons against our product, in the order in which they are checked; their figures were measured,
see ``docs/decisions/0016-linear-on-the-cpu.md`` and ``0017-linear-on-hopper.md``. ``backend="cpu"``
or ``"cuda"`` runs ours regardless of the tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._library import have_kernels_for, log_dispatch, logs_dispatch
from ..._processor import cpuinfo
from ..._torch import has_dispatch_mode, is_eager, is_fake, refuses_cublas
from .._kinds import PLAIN_CLASSES, is_plain
from . import _tuned

_MOST_FEW_ROWS = 16  # engines: csrc/linear's cpu/few_rows.h and sm80/few_rows.cuh
_FEWEST_ROWS, _FEWEST_ROWS_OF_GRADIENTS = 32, 64
_FEWEST_PRODUCTS = 6 * 2**20
_FEWEST_NUMBERS, _FEWEST_NUMBERS_OF_ONE_ROW = 2**18, 2**19  # of a weight
_FIRST_FULL_WIDTH_FAMILY = 26  # AMD's Zen 5, which has 512-bit adders
_MOST_16_BIT = (8, 4)  # rows, with a weight stored by columns, and by rows
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)
_FEWEST_ROWS_ON_HOPPER = 512
_MOST_NUMBERS_ON_HOPPER, _MOST_ROWS_BY_COLUMNS = 2**24, 4  # with few rows
_TILES = ((128, 192), (128, 128))  # of csrc/linear/sm90
_FEWEST_ROUNDS = 2  # of tiles of a weight's gradient; with fewer PyTorch's product is no slower
_LEAST_SHARE = 0.85  # the share of the processors' time that tiles have to fill
_ALIGNMENT = 16  # bytes
_MOST_CHOICES = 4096  # kept; then all are forgotten


class Choice(NamedTuple):
    reason: str | None  # why PyTorch's product runs; None where ours does
    routes: _tuned.Routes | None = None  # if not all products are ours


class Refusal(NamedTuple):
    applies: Callable[..., bool]  # takes the operands
    reason: str


def first_reason(refusals: tuple[Refusal, ...], *operands: Tensor | None) -> str | None:
    return next((row.reason for row in refusals if row.applies(*operands)), None)


@functools.cache
def blas_is_fast() -> bool:
    """Whether PyTorch's float32 products run at about the processor's speed.

    They were measured not to where MKL runs on a processor with AVX-512 that is not Intel's: it
    leaves AVX-512 unused.
    """
    text = cpuinfo()
    if not (torch.backends.mkl.is_available() and text):
        return True
    return "GenuineIntel" in text or torch.backends.cpu.get_cpu_capability() != "AVX512"


@functools.cache
def blas_fills_units() -> bool:
    """Whether PyTorch's float32 products with many rows use the full width of the arithmetic units.

    On AMD's processors MKL multiplies vectors of 256 bits. Zen 4 executes vectors of 512 bits as
    two halves and would gain nothing from them; from Zen 5 on they double the rate.
    """
    family = re.search(r"^cpu family\s*:\s*(\d+)", cpuinfo(), re.MULTILINE)
    return blas_is_fast() or family is None or int(family[1]) < _FIRST_FULL_WIDTH_FAMILY


def _is_small(x: Tensor, weight: Tensor) -> bool:
    return x.numel() * len(weight) < _FEWEST_PRODUCTS if weight.dim() else True


def _is_small_for_its_rows(x: Tensor, weight: Tensor) -> bool:
    one = _rows(x) == 1
    return weight.numel() < (_FEWEST_NUMBERS_OF_ONE_ROW if one else _FEWEST_NUMBERS)


def _has_not_many_rows(x: Tensor, weight: Tensor) -> bool:
    trains = _has_gradients(x, weight)
    return _rows(x) < (_FEWEST_ROWS_OF_GRADIENTS if trains else _FEWEST_ROWS)


def _rows(x: Tensor) -> int:
    shape = x.shape
    return x.numel() // (shape[-1] or 1) if shape else 1


def _has_gradients(x: Tensor, weight: Tensor) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)


def has_few_rows(x: Tensor) -> bool:
    """Whether engines for few rows apply, which read the weight once, at the speed of memory."""
    return _rows(x) <= _MOST_FEW_ROWS


@functools.cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _processors(device: int) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@functools.lru_cache(maxsize=4096)
def _is_filled(rows: int, cols: int, processors: int) -> bool:
    """Whether tiles of the result keep the processors busy until their last round."""

    def share(height: int, width: int) -> float:
        tiles = -(-rows // height) * -(-cols // width)
        return rows * cols / (-(-tiles // processors) * processors * height * width)

    return max(share(*tile) for tile in _TILES) >= _LEAST_SHARE


def leaves_processors_idle(x: Tensor, weight: Tensor) -> bool:
    rows, processors = _rows(x), _processors(x.device.index)
    if not _is_filled(rows, weight.shape[0], processors):
        return True
    has_dx = torch.is_grad_enabled() and x.requires_grad
    return has_dx and not _is_filled(rows, weight.shape[1], processors)


def _dtype_in_products(x: Tensor) -> torch.dtype:
    """The dtype of ``x`` in products: its own, or autocast's."""
    lowered = torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64
    return torch.get_autocast_dtype(x.device.type) if lowered else x.dtype


def _is_uneven(matrix: Tensor) -> bool:
    """Whether rows or columns begin at addresses that Hopper's tensor maps cannot express."""
    if matrix.dim() != 2 or 1 not in matrix.stride():
        return True
    step = _ALIGNMENT // _dtype_in_products(matrix).itemsize
    lines = any(stride != 1 and stride % step for stride in matrix.stride())
    return lines or (not is_fake(matrix) and matrix.data_ptr() % _ALIGNMENT != 0)


def _has_uneven_features(weight: Tensor) -> bool:
    return any(size % (_ALIGNMENT // 2) for size in weight.shape)


# Reasons why our product cannot run, or must not.
_FOLLOWED = Refusal(lambda *_: not is_eager(), "a graph or a transform follows the call")
_MORE_THAN_MEMORY = Refusal(
    lambda x, weight: not (is_plain(x) and is_plain(weight)),
    "an operand is more than memory",
)
_NO_KERNEL = Refusal(lambda x, _: not have_kernels_for(x), "no kernel for this device")
_ANY_DEVICE = (_FOLLOWED, _MORE_THAN_MEMORY, _NO_KERNEL)
_ANY_DEVICE_OF_FAKES = (_FOLLOWED, _NO_KERNEL)
_ROWS_ON_CUDA = (
    Refusal(
        lambda x, _: _dtype_in_products(x) not in _NARROW,
        "our product on CUDA is of 16-bit numbers",
    ),
    Refusal(
        lambda x, _: has_few_rows(x) and _capability(x.device.index) < (8, 0),
        "our product of few rows needs compute capability 8.0",
    ),
    Refusal(
        lambda x, _: not has_few_rows(x) and _capability(x.device.index) != (9, 0),
        "our product on CUDA is Hopper's",
    ),
    Refusal(
        lambda x, _: has_few_rows(x) and x.dim() > 0 and x.shape[-1] % 8 != 0,
        "terms are no multiple of 8",
    ),
)
_ON_CUDA = (
    *_ROWS_ON_CUDA,
    Refusal(
        lambda x, weight: _dtype_in_products(weight) is not _dtype_in_products(x),
        "an operand is of another dtype",
    ),
    Refusal(lambda _, weight: _is_uneven(weight), "rows of the weight are not 16-byte aligned"),
)
_ON_CPU = (Refusal(lambda *_: torch.is_autocast_enabled("cpu"), "autocast is on"),)

# Reasons why our product was measured to be slower, on the machines of the decisions.
_FEW_ROWS_ON_CUDA = (
    Refusal(
        lambda x, _: _capability(x.device.index) != (9, 0),
        "of few rows ours was measured on Hopper alone",
    ),
    Refusal(_has_gradients, "of few rows only the forward pass was measured"),
    Refusal(
        lambda _, weight: weight.numel() > _MOST_NUMBERS_ON_HOPPER,
        "PyTorch's reads a large weight as fast",
    ),
    Refusal(
        lambda x, weight: weight.stride(-1) != 1 and _rows(x) > _MOST_ROWS_BY_COLUMNS,
        "of more than 4 rows and a weight kept by columns PyTorch's was measured to be as fast",
    ),
)
_SLOWER_ON_HOPPER = (
    Refusal(lambda x, _: _rows(x) < _FEWEST_ROWS_ON_HOPPER, "there are few rows"),
    Refusal(leaves_processors_idle, "tiles of the result would leave processors idle"),
)
_FEW_ROWS = (
    Refusal(_is_small_for_its_rows, "the weight is small"),
    Refusal(_has_gradients, "of few rows only the forward pass was measured"),
    Refusal(
        lambda x, _: x.dtype in _WIDE and _rows(x) == 1 and blas_is_fast(),
        "PyTorch's reads the weight as fast on this processor",
    ),
    Refusal(
        lambda x, weight: x.dtype not in _WIDE and _rows(x) > _MOST_16_BIT[weight.stride(-1) == 1],
        "PyTorch multiplies 16-bit numbers by the processor's own instructions",
    ),
)
_MORE_ROWS = (
    Refusal(lambda *_: blas_fills_units(), "PyTorch's is as fast on this processor"),
    Refusal(
        lambda x, _: x.dtype not in _WIDE,
        "PyTorch's product of 16-bit numbers was measured to be as fast",
    ),
    Refusal(
        _has_not_many_rows,
        "not many rows: bringing the weight in order would take longer",
    ),
    Refusal(_is_small, "the product is small"),
)


def is_little(op: str, x: Tensor, *weights: Tensor) -> bool:
    """Whether the rules leave every product to PyTorch because it is small, on a CPU. Few questions
    decide: :func:`choose` may ask for longer than such a product takes. Of weights only the size is
    asked, because PyTorch takes or refuses every other kind."""
    if not (is_plain(x) and x.is_cpu and is_eager()) or _tuned.is_measuring():
        return False
    numbers, measured = 0, _tuned.sizes_of_weights()
    try:
        for weight in weights:
            numbers = max(numbers, weight.numel())
            if weight.dtype is not x.dtype or (measured and weight.shape in measured):
                return False
    except AttributeError:  # an operand is no tensor
        return False
    if numbers >= _FEWEST_NUMBERS or _rows(x) * numbers >= _FEWEST_PRODUCTS:
        return False
    log_dispatch(f"{op}: packed refused: the product is small; PyTorch's product runs")
    return True


def why_not(
    x: Tensor,
    weight: Tensor,
    down_weight: Tensor | None = None,
    up_weight: Tensor | None = None,
    *,
    activated: bool = False,
    fakes: bool = False,
) -> str | None:
    """The reason why only PyTorch's product can run; None where ours can."""
    reason = first_reason(_ANY_DEVICE_OF_FAKES if fakes else _ANY_DEVICE, x, weight)
    if reason is None:
        reason = first_reason(_ON_CUDA if x.is_cuda else _ON_CPU, x, weight)
    if reason is None and x.is_cuda:
        for name, other in (("down_weight", down_weight), ("up_weight", up_weight)):
            if other is not None and _is_uneven(other):
                return f"rows of {name} are not 16-byte aligned"
        if activated and _has_uneven_features(weight):
            return "features are no multiple of 8"
    return reason


def why_not_few_rows_on_cuda(x: Tensor) -> str | None:
    """The reason why few-row kernels cannot run on CUDA, whatever the weight's format; None where
    they can."""
    if not has_few_rows(x):
        return "there are more than 16 rows"
    return first_reason(_ROWS_ON_CUDA, x, x)


def why_slower(x: Tensor, weight: Tensor) -> str | None:
    """The reason why the rules choose PyTorch's product; None where they choose ours."""
    few, more = (_FEW_ROWS_ON_CUDA, _SLOWER_ON_HOPPER) if x.is_cuda else (_FEW_ROWS, _MORE_ROWS)
    return first_reason(few if has_few_rows(x) else more, x, weight)


def _routes_by_rules(x: Tensor, weight: Tensor) -> _tuned.Routes | None:
    """Routes on Hopper for a layer whose weight's gradient may have few tiles."""
    trains = torch.is_grad_enabled() and weight.requires_grad
    if not (x.is_cuda and trains) or has_few_rows(x) or _has_uneven_features(weight):
        return None
    if refuses_cublas():
        return None
    (height, width), *_ = _TILES
    tiles = -(-weight.shape[0] // height) * -(-weight.shape[1] // width)
    if tiles >= _FEWEST_ROUNDS * _processors(x.device.index):
        return None
    return _tuned.Routes(dweight=_tuned.TORCH)


def product_of(x: Tensor, weight: Tensor, *, activated: bool = False) -> _tuned.Product:
    needed = [("x", x), ("weight", weight)] if torch.is_grad_enabled() else []
    return _tuned.Product(
        device=_tuned.device_name(x.device),
        threads=_tuned.threads_of(x.device),
        dtype=str(_dtype_in_products(x)).removeprefix("torch."),
        rows=_rows(x),
        terms=x.shape[-1],
        columns=len(weight),
        by_columns=weight.stride(0) == 1 and weight.stride(1) > 1,
        activated=activated,
        gradients=" ".join(name for name, tensor in needed if tensor.requires_grad),
    )


def _times(x: Tensor, weight: Tensor, activated: bool) -> _tuned.Times | None:
    """Measured times of the products, if they are known or are to be measured now."""
    measure = _tuned.measure()
    if measure is None and weight.shape not in _tuned.sizes_of_weights():
        return None
    if x.dim() == 0 or weight.dim() != 2:
        return None
    product = product_of(x, weight, activated=activated)
    found = _tuned.table().times.get(product)
    if found is None and measure is not None and _is_measurable(x, weight):
        dtype = _dtype_in_products(x)
        found = measure(x.detach().to(dtype), weight.detach().to(dtype), product)
        _tuned.table().keep(product, found)
    return found


def _is_measurable(x: Tensor, weight: Tensor) -> bool:
    """Whether the operands form a product, and nothing follows the timed calls."""
    fits = x.shape[-1] == weight.shape[1] and _dtype_in_products(weight) is _dtype_in_products(x)
    captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return fits and x.numel() * len(weight) > 0 and not captured and not has_dispatch_mode()


def refusal(
    op: str,
    x: Tensor,
    weight: Tensor,
    *others: Tensor | None,
    activated: bool = False,
    by_rules: bool = False,
    fakes: bool = False,
) -> str | None:
    """The reason why PyTorch's product runs; None where ours does. Arguments are those of
    :func:`choose`."""
    choice = choose(op, x, weight, *others, activated=activated, by_rules=by_rules, fakes=fakes)
    return choice.reason


def choose(
    op: str,
    x: Tensor,
    weight: Tensor,
    down_weight: Tensor | None = None,
    up_weight: Tensor | None = None,
    *,
    activated: bool = False,
    by_rules: bool = False,
    fakes: bool = False,
) -> Choice:
    """Chooses who multiplies.

    Args:
        down_weight: the weight of a following layer.
        up_weight: the weight beside ``weight``, if that is a gate.
        activated: whether an activation is part of the product.
        by_rules: whether to ignore measured times, because products of other sizes will run.
        fakes: whether fake tensors count as the real tensors that they stand for.
    """
    operands = (x, weight, down_weight, up_weight)
    key = None if fakes else _key(*operands)
    if key is None:
        return _choose(op, operands, activated, by_rules, fakes)
    key = (op, activated, by_rules, *key)
    choices = _tuned.choices()
    found = choices.get(key)
    if found is None:
        if len(choices) >= _MOST_CHOICES:
            choices.clear()
        found = choices[key] = _choose(op, operands, activated, by_rules, fakes)
    return found


def _key(x: Tensor, *weights: Tensor | None) -> tuple[Any, ...] | None:
    """All that decides who multiplies on CUDA, where asking the tables takes longer than a kernel:
    what was chosen once is chosen again. None elsewhere, while products are timed, and where each
    call is logged."""
    if type(x) not in PLAIN_CLASSES or not x.is_cuda or not is_eager():
        return None
    if logs_dispatch() or _tuned.is_measuring():
        return None
    key: list[Any] = [
        torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"), refuses_cublas(), x.shape, x.dtype, x.device,
        x.requires_grad,
    ]  # fmt: skip
    for t in weights:
        if t is None:
            key.append(None)
        elif type(t) in PLAIN_CLASSES and t.is_cuda:
            key += (t.shape, t.stride(), t.dtype, t.requires_grad, t.data_ptr() % _ALIGNMENT)
        else:
            return None
    return tuple(key)


def _choose(
    op: str, operands: tuple[Any, ...], activated: bool, by_rules: bool, fakes: bool
) -> Choice:
    x, weight = operands[:2]
    reason = why_not(*operands, activated=activated, fakes=fakes)
    forced = _tuned.forced()
    if reason is None and forced is not None:
        routes = forced if isinstance(forced, _tuned.Routes) else None
        return Choice("it is being timed" if forced == "torch" else None, routes)
    found = Choice(reason)
    if reason is None:
        times = None if by_rules else _times(x, weight, activated)
        found = _by_rules(x, weight) if times is None else _by_times(op, times)
    if found.reason is not None:
        log_dispatch(f"{op}: packed refused: {found.reason}; PyTorch's product runs")
    return found


def _by_rules(x: Tensor, weight: Tensor) -> Choice:
    reason = why_slower(x, weight)
    return Choice(reason, _routes_by_rules(x, weight) if reason is None else None)


def _by_times(op: str, times: _tuned.Times) -> Choice:
    if times.fastest == "torch":
        return Choice(f"it took {times}")
    log_dispatch(f"{op}: packed runs: it took {times}")
    if times.routed is None or times.fastest != "routed":
        return Choice(None)
    return Choice(None, times.routed.routes)
