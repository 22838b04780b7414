# SPDX-License-Identifier: MIT
"""Decides where a CPU op's outputs lie: in pages that the system maps anew, or in memory that
malloc kept.

glibc maps a large block anew and unmaps it when it is freed, and the kernel clears each page at its
first touch, which takes longer than many ops. The size from which it does so depends on what the
process freed before: the limit rises up to 32 MB, and gaps that other tensors left behind serve
larger blocks. This module fixes it: ``fresh`` outputs of 32 MB or more are mapped anew and smaller
ones are not, as in a process that has run for a while; ``reused`` outputs are never mapped anew.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

OUTPUTS = ("fresh", "reused")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of mallopt(3)
_NEVER = 2**31 - 1
_MANY = 1 << 16
_SMALL, LARGE = 128 << 10, 32 << 20


def is_known() -> bool:
    """Whether the C library is glibc, whose allocator can be configured."""
    return _libc() is not None


class Heap:
    """Configures malloc for the whole process; does nothing where the C library is not glibc."""

    def __init__(self) -> None:
        self._plugs: list[int] = []

    def keep_apart(self) -> None:
        """Maps tensors that are made from now on apart, so that they leave no gaps when they are
        freed."""
        self._set(mapped_from=_SMALL, mappings=_MANY)

    def choose(self, outputs: str) -> None:
        """Sets up malloc for the calls that follow: ``outputs`` is "fresh" or "reused"."""
        self._set(mapped_from=LARGE, mappings=_MANY if outputs == "fresh" else 0)
        if outputs == "fresh":
            self._plug()

    def _set(self, mapped_from: int, mappings: int) -> None:
        libc = _libc()
        if libc is None:
            return
        while self._plugs:
            libc.free(self._plugs.pop())
        libc.malloc_trim(0)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
        libc.mallopt(_MMAP_THRESHOLD, mapped_from)
        libc.mallopt(_MMAP_MAX, mappings)

    def _plug(self) -> None:
        """Takes the gaps of the heap that a large output would fit into, without touching a
        page."""
        libc = _libc()
        if libc is None:
            return
        while (block := libc.malloc(LARGE)) < libc.sbrk(0):
            self._plugs.append(block)
        libc.free(block)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_size_t
    libc.malloc.argtypes = libc.malloc_trim.argtypes = [ctypes.c_size_t]
    libc.free.argtypes, libc.free.restype = [ctypes.c_size_t], None
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    return libc
