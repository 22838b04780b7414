# SPDX-License-Identifier: MIT
"""The plan of an op on a CPU, whose time arithmetic shares with memory.

Exponentials and operations of vectors are counted in the op's reference, which runs on tensors
without memory: an exponential is an element of ``exp``, ``tanh``, ``erf`` and their like.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_kernels.bench.cases import all_ops
from transformer_kernels.hardware import Plan
from transformer_kernels.measure.case import Case, Problem
from transformer_kernels.measure.schema import Row
from transformer_kernels.measure.sweeps import Shape

# References of these families take operands alone, and their work is that of one element each.
_COUNTED = ("norm", "softmax", "pointwise", "loss", "rope", "linear")
_QUANTISED = "linear/quantized_linear"  # its declaration counts no operations
_BLOCK = 128  # rows of attention's scores
_OPERATIONS_OF_A_SCORE = 4  # scale, maximum, subtraction and sum
_EXPONENTIALS = {
    "_log_softmax", "_softmax", "cos", "erf", "erfc", "exp", "gelu", "log", "logsumexp", "sigmoid",
    "silu", "sin", "tanh",
}  # fmt: skip
_MAKERS = ("clone", "copy", "detach", "empty", "like", "ones", "zero")
_PRODUCTS = ("addmm", "bmm", "mm")
# The allocator takes larger tensors from the operating system each time, and gives them back.
_NEW_PAGES_FROM = 32 << 20
_PAGE = 4096


def add_work(plan: Plan, row: Row, case: Case, units: int, threads: int) -> Plan:
    """The plan of a row with what it asks of a CPU beside products and bytes.

    Args:
        plan: as of any device, with attention's exponentials.
        units: cores of the machine.
        threads: that ran the row.
    """
    shape = tuple(row.shape)
    exponentials, operations = counted(case, row.pass_, shape)
    size, edge = _bytes(row, case), _edge(case, shape)
    scores = plan.exponentials * edge
    work = {"operations": operations + _OPERATIONS_OF_A_SCORE * scores}
    flops = plan.flops * edge
    if row.dtype != "float32":
        work["converted"] = size / 2
    if case.key == _QUANTISED:
        rows, terms, columns = shape
        work["converted"] = terms * columns
        flops = flops or 2 * rows * terms * columns
    if case.draw is not None:
        work["random"] = math.prod(case.sizes(case.inputs[0], shape))
    return Plan(
        bytes=size,
        flops=flops,
        dtype=plan.dtype,
        exponentials=scores + exponentials,
        longest=1 / threads if threads < units else 0.0,
        work=work,
        pages=_new_pages(row, case),
    )


def _edge(case: Case, shape: Shape) -> float:
    """A causal mask leaves half of the scores, and half of each block on its edge, which is
    computed whole: the factor of its work."""
    return 1 + _BLOCK / shape[1] if case.name.startswith("causal_attention") else 1.0


def _bytes(row: Row, case: Case) -> int:
    """The bytes of the pass as they are declared now: old files may have counted other ones."""
    if case.indices:
        return row.bytes
    dtype = getattr(torch, row.dtype)
    weights = getattr(torch, row.weight_dtype or row.dtype)
    problem = Problem(row.op, row.pass_, dtype, weights, tuple(row.shape))
    return case.bytes_moved(row.pass_, case.make(problem, torch.device("meta")))


def _new_pages(row: Row, case: Case) -> int:
    """The pages of fresh results that are too large to be kept by the allocator."""
    if row.outputs != "fresh":
        return 0
    names = case.outputs if row.pass_ == "forward" else (*case.differentiable, *case.parameters)
    sizes = (_size(name, row, case) for name in names)
    return sum(size // _PAGE for size in sizes if size >= _NEW_PAGES_FROM)


def _size(name: str, row: Row, case: Case) -> int:
    item = 4 if row.dtype == "float32" else 2
    return item * math.prod(_sizes(name, tuple(row.shape), case))


def _sizes(name: str, shape: Shape, case: Case) -> Shape:
    return shape[-1:] if name in case.parameters else case.sizes(name, shape)


# ---- counting -----------------------------------------------------------------------------------


def counted(case: Case, pass_: str, shape: Shape) -> tuple[int, int]:
    """Exponentials and operations of vectors of a pass; zeros where the reference does not tell."""
    if not case.key.startswith(_COUNTED) or case.indices:
        return 0, 0
    forward, backward = _both_passes(case.name, shape)
    if pass_ == "forward":
        return forward
    # The backward pass computes the exponentials anew, unless it reads the result.
    exponentials, operations = backward
    again = 0 if case.key.startswith("softmax") else forward[0]
    return exponentials + again, operations


@functools.cache
def _both_passes(op: str, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    case = all_ops()[op]
    operands = [_operand(name, shape, case) for name in case.operands]
    drawn = [_operand(case.inputs[0], shape, case).detach() > 0] if case.draw else []
    with _Count() as forward:
        results = _pytree.tree_leaves(case.reference(*operands, *drawn))
    leaves = [x for x in operands if x.requires_grad]
    with _Count() as backward:
        ones = [torch.ones_like(y) for y in results]
        torch.autograd.grad(results, leaves, ones, allow_unused=True)
    return forward.found, backward.found


def _operand(name: str, shape: Shape, case: Case) -> Tensor:
    sizes = _sizes(name, shape, case)
    if name in case.integers:
        return torch.empty(sizes, dtype=torch.int64, device="meta")
    return torch.empty(sizes, dtype=torch.float64, device="meta", requires_grad=True)


class _Count(TorchDispatchMode):
    """Counts the elements of PyTorch's operations while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.exponentials = self.operations = 0

    @property
    def found(self) -> tuple[int, int]:
        return self.exponentials, self.operations

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op.name().split("::")[1].split(".")[0]
        if _computes(op, name):
            tensors = (x for x in _pytree.tree_leaves((args, result)) if isinstance(x, Tensor))
            count = max((x.numel() for x in tensors), default=0)
            self.operations += count
            self.exponentials += count if name in _EXPONENTIALS else 0
        return result


def _computes(op: Any, name: str) -> bool:
    """Whether an operation reads and computes elements: it is not a view, a product, a copy or the
    making of a tensor."""
    made = any(word in name for word in _MAKERS)
    return not (op.is_view or made or name in _PRODUCTS)
