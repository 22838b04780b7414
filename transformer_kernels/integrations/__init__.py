# SPDX-License-Identifier: MIT
"""The kernels in other libraries, which are imported with the modules here."""
