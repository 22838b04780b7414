# SPDX-License-Identifier: MIT
"""Where the outputs of a CPU's calls lie: in memory that the system gives anew, or that is kept.

glibc maps a large block anew and unmaps it when it is freed, and the kernel clears each page at its
first touch, which takes longer than many ops. From which size on depends on what the process has
freed before: the limit rises up to 32 MB, and room that other tensors left behind serves larger
ones. Here it is always the same: ``fresh`` outputs of 32 MB or more are mapped anew, smaller ones
are not, as in a process that has run for a while; ``reused`` ones never are.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

OUTPUTS = ("fresh", "reused")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_NEVER = 2**31 - 1
_MANY = 1 << 16
_SMALL, LARGE = 128 << 10, 32 << 20


def is_known() -> bool:
    """Whether the C library is one whose allocator can be told."""
    return _libc() is not None


class Heap:
    """What malloc does for all that is allocated by the process; elsewhere than glibc, nothing."""

    def __init__(self) -> None:
        self._plugs: list[int] = []

    def keep_apart(self) -> None:
        """Tensors that are made next leave no room behind when they are freed."""
        self._set(mapped_from=_SMALL, mappings=_MANY)

    def choose(self, outputs: str) -> None:
        """For the outputs of the calls that follow."""
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
        """Takes the gaps of the heap that a large output would fit into; no page is touched."""
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
