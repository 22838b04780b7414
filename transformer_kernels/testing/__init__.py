# SPDX-License-Identifier: MIT
"""What the tests of every op share: float64 references, the tolerance rule, inputs, poison."""
