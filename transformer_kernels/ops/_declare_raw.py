# SPDX-License-Identifier: MIT
"""Declares raw ops: the passes of declared ops, and parts of passes that are separate kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._library import composed_op, raw_op
from ._declare import Op
from ._declare_arguments import Given
from ._work import MEMORY, BytesOf, FlopsOf, Work, sizes_of


@dataclass(frozen=True)
class Raw:
    """A raw op, by name, and the declared op that it belongs to, if there is one."""

    name: str
    of: Op | None
    composed: bool  # made of other ops, without a kernel
    work: Callable[[Given], Work]  # takes arguments and results, as named in the schema

    @property
    def kind(self) -> str:
        return MEMORY if self.of is None else self.of.kind


RAW: dict[str, Raw] = {}


def register_passes(op: Op) -> None:
    """Lists the raw ops of a declared op's passes."""

    on_array = [f"{op.name}_forward_fpga"] if op.fpga else []
    for name in (*(schema.partition("(")[0] for schema in op.schemas), *on_array):
        pass_ = "backward" if name.endswith("_backward") else "forward"
        RAW[name] = Raw(name, op, op.composed is not None, partial(op.work, pass_))


def declare_raw(
    schema: str,
    *,
    of: Op | None,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    composed: bool = False,
    moved: BytesOf | None = None,
    flops: FlopsOf | None = None,
    pass_: str = "forward",
) -> Any:
    """Declares a raw op that is not a whole pass, but a part of one or an in-place op, or an op
    without a gradient (``of`` is None); returns its overload.

    It moves each tensor in its schema once, and overwritten ones twice.
    """
    name, rest = schema.partition("(")[::2]
    tensors = re.findall(r"Tensor(?:\(\w!\))?\??\s+(\w+)", rest)
    overwritten = re.findall(r"Tensor\(\w!\)\??\s+(\w+)", rest)

    def work(given: Given) -> Work:
        if moved is not None:
            size = moved(pass_, given)
        else:
            size = sizes_of(given, tensors) + sizes_of(given, overwritten)
        return Work(size, None if flops is None else flops(pass_, given))

    RAW[name] = Raw(name, of, composed, work)
    if composed:
        return composed_op(schema, reference, fake)
    return raw_op(schema, reference=reference, fake=fake)
