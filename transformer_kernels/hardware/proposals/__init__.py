# SPDX-License-Identifier: MIT
"""Three proposals of hardware for attention, as simulators that need no device.

- :mod:`~transformer_kernels.hardware.proposals.cache`: caches and policies, over the lines that
  :mod:`~transformer_kernels.hardware.proposals.traces` makes of the kernels' tile orders.
- :mod:`~transformer_kernels.hardware.proposals.units`: matrix units, and softmax between products.
- :mod:`~transformer_kernels.hardware.proposals.array`: a pipeline that streams attention, against
  one operation after another.

>>> from transformer_kernels.hardware.proposals import cache, traces
>>> problem = traces.Problem(batch=1, time=256, heads=2, kv_heads=1, dim=64, causal=True)
>>> trace = traces.traced(traces.forward(problem), processors=4)
>>> large = cache.simulate(trace, cache.Cache.of_bytes(1 << 20), "lru")
>>> large.bytes == cache.least(trace)
True
"""
