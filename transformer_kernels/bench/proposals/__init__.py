# SPDX-License-Identifier: MIT
"""Three proposals of hardware for attention, and what they would give by the simulators of
:mod:`transformer_kernels.hardware.proposals`: tables, pictures and verdicts."""
