# SPDX-License-Identifier: MIT
"""The kernels in other libraries; each module imports the library that it is named after."""
