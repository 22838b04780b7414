# SPDX-License-Identifier: MIT
"""Registers the steps of optimizers. They take lists: a tensor that lacks what others have has one
without elements in its place, and a list of what none has is empty."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..._library import raw_op
from . import _formula

_SCHEMA = (
    "(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs,"
    " Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, Tensor(f!)[] masters,"
    " Tensor(g!)[] exp_avg_scales, Tensor(h!)[] exp_avg_sq_scales, Tensor(i!)[] steps,"
    " Tensor[] rates, int[] groups, int[] numbers, float[] settings, Tensor? grad_scale,"
    " Tensor? found_inf, float max_norm, bool skips_nonfinite, bool unscales_gradients,"
    " bool rounds_states_randomly, bool rounds_params_randomly, int seed,"
    " Tensor(j!)? norm) -> ()"
)


def _fake(*arguments: Any) -> None:  # noqa: ARG001
    return None


def _step(name: str, rule: Any) -> Any:
    return raw_op(name + _SCHEMA, reference=partial(_formula.run_list, rule), fake=_fake)


adamw_ = _step("adamw_", _formula.adamw_step)
lion_ = _step("lion_", _formula.lion_step)
