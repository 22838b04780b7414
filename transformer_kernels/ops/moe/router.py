# SPDX-License-Identifier: MIT
"""The router of a mixture of experts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._errors import ArgumentValueError, as_choice, as_flag, as_integer, as_number, check_tensors
from .._philox import fresh_seed
from .._public import overridable
from .._sharding import agreed
from ._formula import SIGMOID, SOFTMAX, SQRT_SOFTPLUS
from ._ops import MOE_ROUTER

SCORES = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "sqrt_softplus": SQRT_SOFTPLUS}

_OP = "moe_router"
_call = MOE_ROUTER.call


def _rows(logits: Any) -> Tensor:
    check_tensors(_OP, {"x": logits})
    if logits.dim() == 0:
        raise ArgumentValueError(f"{_OP}: x has 0 dimensions, expected at least 1")
    rows: Tensor = logits if logits.dim() == 2 else logits.reshape(-1, logits.shape[-1])
    return rows


@overridable
def moe_router(
    logits: Tensor,
    top_k: int,
    *,
    score: str = "softmax",
    expert_bias: Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
    jitter: float = 0.0,
    noise: float = 0.0,
    training: bool = True,
    sequences: int = 0,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """Chooses the experts of each token, and their weights, in one pass over the logits.

    The ``top_k`` experts with the largest scores are chosen, the largest first; of equal ones, the
    one with the lowest index. Their indices are exact: without a bias and groups, logits are
    compared, not rounded scores. Weights are the chosen scores times ``scale``, divided by their
    sum if ``renormalize``; a renormalized softmax is the softmax over the chosen logits alone.

    NaN is larger than all numbers, as in :func:`torch.topk`, and makes the weights of its row NaN,
    those of sigmoid and ``sqrt_softplus`` without ``renormalize`` only its own.

    Args:
        logits: (..., E), float64, float32, float16 or bfloat16; E is at most 4096.
        top_k: K, the experts of a token: 1 to 16, and at most E.
        score: ``"softmax"``, ``"sigmoid"``, or ``"sqrt_softplus"``, the root of ``log(1 + exp)``.
        expert_bias: (E), added to the scores for the choice alone, which balances the load without
            a loss (Wang et al. 2024, arXiv:2408.15664); of ``logits``' dtype or float32, and
            without a gradient.
        groups: experts in this many groups of neighbours; E is then at most 512.
        top_groups: experts are chosen in so many groups: those whose two best scores have the
            largest sums (DeepSeek-AI 2024, arXiv:2412.19437).
        renormalize: divide the weights by their sum.
        scale: factor of the weights.
        jitter: in training, multiplies each logit by a number drawn uniformly from ``1 - jitter``
            to ``1 + jitter``.
        noise: in training, adds normal noise of this standard deviation to each logit (Shazeer et
            al. 2017, arXiv:1701.06538).
        training: ``False`` draws no random numbers.
        sequences: above 0, also returns what losses that balance the load read; the tokens, in
            their order, are this many sequences of one length.
        seed: int64 seed and offset, (2,), on the CPU or on the device of ``logits``; by default
            drawn from the device's generator.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"`` or ``"reference"``.

    Returns:
        ``weights`` (..., K), float32, or float64 if ``logits`` are, and ``indices`` (..., K),
        int32. With ``sequences``, also ``importance`` (sequences, E), the sum over the tokens of
        each sequence of their scores, normalised to a sum of 1, and ``lse`` (...), the
        log-sum-exp of the logits. All but the indices have gradients.

    Raises:
        ValueError: a shape or number is none of these.
        TypeError: a dtype is none of these.

    >>> weights, indices = tfk.functional.moe_router(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2)
    >>> weights, indices
    (tensor([[0.5000, 0.5000]]), tensor([[1, 3]], dtype=torch.int32))
    """
    rows = _rows(logits)
    count = as_integer(_OP, "sequences", sequences)
    if not as_flag(_OP, "training", training):
        jitter = noise = 0.0
    if seed is None and (
        as_number(_OP, "jitter", jitter) > 0 or as_number(_OP, "noise", noise) > 0
    ):
        seed = agreed(fresh_seed(rows.device), rows)
    found = _call(
        rows, expert_bias, seed, top_k, groups, top_groups, count,
        as_choice(_OP, "score", score, SCORES), renormalize, scale, jitter, noise, backend,
    )  # fmt: skip
    leading = logits.shape[:-1]
    weights, indices = (x.reshape(*leading, x.shape[-1]) for x in found[:2])
    if count == 0:
        return weights, indices
    return weights, indices, found[2], found[3].reshape(leading)
