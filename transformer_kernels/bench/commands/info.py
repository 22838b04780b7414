# SPDX-License-Identifier: MIT
"""Says what is installed, which backends it has, and on which machine.

$ transformer-kernels info
"""

from __future__ import annotations

import argparse

from transformer_kernels.bench.options import pick_device
from transformer_kernels.info import info
from transformer_kernels.measure import machine


def add_arguments(_: argparse.ArgumentParser) -> None:
    pass


def run(_: argparse.Namespace) -> int:
    print(info())
    print(f"{'machine':<20}{machine.describe_machine(pick_device('auto')).device_name}")
    return 0
