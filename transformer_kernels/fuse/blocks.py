# SPDX-License-Identifier: MIT
"""Finds the blocks of a model: the modules of one class that stand in one list and are called one
after the other."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .derive import original
from .record import Call, Trace

_LEAST = 2  # members of a list that make it a list of blocks


def blocks(model: nn.Module, trace: Trace) -> Iterator[list[Call]]:
    """Yields the calls of the blocks of each list, in the order of the run.

    A list counts where at least two of its members are of one class, hold modules of their own and
    were called. Lists within a block belong to it: experts, for example.
    """
    lists: dict[str, dict[str, Call]] = {}
    for call in trace.calls:  # a module's call begins before those in it
        holder, _, _ = call.path.rpartition(".")
        if not call.path or not isinstance(model.get_submodule(holder), _LISTS):
            continue
        if any(call.path.startswith(f"{path}.") for members in lists.values() for path in members):
            continue
        if any(True for _ in call.module.children()):
            lists.setdefault(holder, {}).setdefault(call.path, call)
    for members in lists.values():
        calls = list(members.values())
        kinds = {original(type(call.module)) for call in calls}
        if len(calls) >= _LEAST and len(kinds) == 1:
            yield calls


_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
