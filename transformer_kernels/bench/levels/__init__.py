# SPDX-License-Identifier: MIT
"""`transformer-kernels levels`: one transformer block in five levels, on the machine in hand."""
