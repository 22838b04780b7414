# SPDX-License-Identifier: MIT
"""`transformer-kernels levels` measures one transformer block in five levels on this machine."""
