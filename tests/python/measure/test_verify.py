# SPDX-License-Identifier: MIT
"""The check before the timing refuses wrong results."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.bench import cases
from transformer_kernels.measure.case import Problem
from transformer_kernels.measure.verify import Reference, VerificationError

CPU = torch.device("cpu")


def _setup(name="layer_norm", pass_="forward", rows=400, columns=64):
    op = cases.all_ops()[name]
    problem = Problem(name, pass_, torch.float32, torch.float32, (rows, columns))
    arguments = op.make(problem, CPU)
    with torch.no_grad():
        right = op.build("torch", pass_, lambda f: f)(arguments)
        return Reference(op, pass_, arguments), right


def _spoil(call, spoil):
    """The call, with one of its results changed."""

    def run():
        outputs = call()
        results = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        results = [result.clone() for result in results]
        spoil(results)
        return tuple(results)

    return run


def _set(index, position, value):
    def spoil(results):
        results[index][position] = value

    return spoil


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_element_anywhere_is_enough(bad):
    reference, right = _setup()
    for row in (0, 217, 399):  # row 217 may not be among those compared
        with pytest.raises(VerificationError, match="NaN or infinity, or was not written"):
            reference.check(_spoil(right, _set(0, (row, 5), bad)))


def test_one_wrong_element_of_the_first_and_last_row_is_found():
    reference, right = _setup()
    for row in (0, -1):
        with pytest.raises(VerificationError, match="relative error"):
            reference.check(_spoil(right, _set(0, (row, 5), 9.0)))


def test_one_wrong_column_sum_is_found():
    reference, right = _setup(pass_="backward")
    assert reference.check(right) < 1e-5
    with pytest.raises(VerificationError, match="relative error"):
        reference.check(_spoil(right, _set(1, 3, 1e3)))


def test_a_row_left_out_of_a_column_sum_is_found():
    reference, right = _setup(pass_="backward")
    with pytest.raises(VerificationError):
        reference.check(_spoil(right, lambda r: r[1].mul_(399 / 400)))


def test_a_missing_result_is_found():
    reference, right = _setup(pass_="backward")
    with pytest.raises(VerificationError, match="gave 2 results, expected 3"):
        reference.check(lambda: right()[:2])


def test_an_output_that_is_never_written_is_found():
    reference, right = _setup()
    shape = right().shape
    with pytest.raises(VerificationError):
        reference.check(lambda: torch.empty(shape))


def test_the_allowance_widens_the_tolerance():
    reference, right = _setup()
    slightly_off = _spoil(right, lambda r: r[0].mul_(1 + 2e-5))
    with pytest.raises(VerificationError):
        reference.check(slightly_off)
    assert reference.check(slightly_off, allowance=4) == pytest.approx(2e-5, rel=0.1)


def test_what_a_random_op_drops_is_its_own_choice_but_not_how_much():
    reference, right = _setup("bias_dropout_add")
    reference.check(right)
    with pytest.raises(VerificationError, match=r"drops .* of all elements, expected 0.1"):
        reference.check(lambda: right() * 0 + 3.0)


def test_a_wrong_element_of_a_random_op_is_found():
    reference, right = _setup("bias_dropout_add")
    with pytest.raises(VerificationError, match="relative error"):
        reference.check(_spoil(right, _set(0, (0, 5), 9.0)))


def test_a_wrong_sum_of_a_random_op_is_found():
    reference, right = _setup("bias_dropout_add", "backward")
    with pytest.raises(VerificationError, match="relative error"):
        reference.check(_spoil(right, _set(1, 5, 99.0)))
