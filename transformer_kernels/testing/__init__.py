# SPDX-License-Identifier: MIT
"""Helpers that the tests of all ops share: float64 references, the tolerance rule, inputs,
poison."""
