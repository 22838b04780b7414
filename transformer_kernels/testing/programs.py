# SPDX-License-Identifier: MIT
"""The end of a program that a test runs in a process of its own.

A backward pass on a device runs in a thread of autograd, and a process group has threads of gloo.
Such a thread may still release Python objects when the program ends. The interpreter then ends the
thread by unwinding its stack, and a frame of C++ that must not be unwound ends the process: it
writes "terminate called without an active exception".
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """End the process with success; the interpreter and its threads stay as they are."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# The last lines of a program that the interpreter gets as text.
LEAVE = """
from transformer_kernels.testing.programs import leave
leave()
"""
