# SPDX-License-Identifier: MIT
"""The raw ops: passes of declared ops, and parts of passes that are kernels of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._library import composed_op, raw_op
from ._declare import Op
from ._declare_arguments import Given
from ._work import BytesOf, FlopsOf, Work, sizes_of


@dataclass(frozen=True)
class Raw:
    """A raw op by its name, with the declared op that it belongs to."""

    name: str
    of: Op
    composed: bool  # of other ops: no kernel of its own
    work: Callable[[Given], Work]  # by its arguments and its results, which its schema names

    @property
    def kind(self) -> str:
        return self.of.kind


RAW: dict[str, Raw] = {}


def register_passes(op: Op) -> None:
    """List the raw ops that the passes of a declared op are."""

    on_array = [f"{op.name}_forward_fpga"] if op.fpga else []
    for name in (*(schema.partition("(")[0] for schema in op.schemas), *on_array):
        pass_ = "backward" if name.endswith("_backward") else "forward"
        RAW[name] = Raw(name, op, op.composed is not None, partial(op.work, pass_))


def declare_raw(
    schema: str,
    *,
    of: Op,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    composed: bool = False,
    moved: BytesOf | None = None,
    flops: FlopsOf | None = None,
    pass_: str = "forward",
) -> Any:
    """The overload of a raw op that is no whole pass: part of one, or one in place.

    It moves each tensor of its schema once, and those that it overwrites twice.
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
