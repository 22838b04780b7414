# SPDX-License-Identifier: MIT
"""Attention's tests on every device: tensors are made on the device under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def default_device(device: str) -> Iterator[None]:
    if device == "cpu":
        yield
        return
    with torch.device(device):
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Uses one thread, for problems so small that distributing them takes longest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
