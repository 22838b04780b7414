# SPDX-License-Identifier: MIT
"""C++'s checks of calls that have no tensors in memory: formulas, fakes and transforms ask them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

import transformer_kernels as tfk
from transformer_kernels import _metadata
from transformer_kernels.functional import (
    attention,
    attention_varlen,
    cross_entropy,
    embedding,
    rope,
    segment_softmax,
    softmax,
)
from transformer_kernels.ops._register import DECLARED

pytestmark = pytest.mark.skipif(
    not _metadata.is_checked("softmax_forward"), reason="the library is not built"
)
X, Q = torch.randn(4, 8), torch.randn(2, 5, 4, 8)
TABLE = torch.randn(6, 4)
AT = torch.tensor([0, 2, 5], dtype=torch.int32)
PACKED = torch.randn(5, 4, 8)


def _attend(at: Any, q: Any = PACKED, **options: Any) -> Any:
    return attention_varlen(q, q, q, at, **options)


# Calls that C++ refuses: of shapes, of dtypes, of numbers, and of integers that it reads.
BAD: dict[str, Callable[..., Any]] = {
    "shape": lambda **o: softmax(X, -1, mask=torch.ones(3, 8), **o),
    "dtype": lambda **o: attention(Q, Q.double(), Q, **o),
    "number": lambda **o: attention(Q, Q, Q, softcap=-1.0, **o),
    "rank": lambda **o: attention(X, X, X, **o),
    "sequences": lambda **o: _attend(AT + 1, **o),
    "positions": lambda **o: rope(Q, None, TABLE, TABLE, offsets=2, **o),
    "ids": lambda **o: rope(
        Q, None, TABLE, TABLE, position_ids=torch.full((2, 10), 9)[:, ::2], **o
    ),
    "table": lambda **o: embedding(torch.arange(3), torch.randn(2, 2, 2), **o),
    "row": lambda **o: embedding(torch.arange(3), TABLE[:2], **o),
    "label": lambda **o: cross_entropy(X, torch.tensor([0, 1, 8, 2]), **o),
    "segments": lambda **o: segment_softmax(X, torch.tensor([0, 3, 2, 4]), **o),
    "transposed": lambda **o: softmax(X.t(), -1, mask=torch.ones(3, 4), **o),
}


def _refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((tfk.ArgumentValueError, tfk.ArgumentTypeError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_formulas_refuse_in_the_words_of_the_kernels(name: str) -> None:
    call = BAD[name]
    assert _refusal(lambda: call(backend="reference")) == _refusal(call)


def test_every_op_that_has_kernels_is_checked_by_them() -> None:
    for name, op in DECLARED.items():
        assert _metadata.is_checked(f"{name}_forward") == (op.composed is None), name
        assert (op.checks is not None) == (op.composed is None), name


def test_fakes_and_meta_tensors_are_checked_without_memory() -> None:
    words = _refusal(lambda: softmax(X, -1, mask=torch.ones(3, 8)))
    raw = torch.ops.transformer_kernels.softmax_forward
    with FakeTensorMode():
        x, mask = torch.empty(4, 8), torch.empty(3, 8)
        assert _refusal(lambda: raw(x, mask, 1.0, False, False)) == words
    x, mask = torch.empty(4, 8, device="meta"), torch.empty(3, 8, device="meta")
    assert _refusal(lambda: softmax(x, -1, mask=mask)) == words
    assert softmax(x, -1).shape == (4, 8)


def test_numbers_that_the_host_lacks_are_not_read() -> None:
    at = AT.to("meta")
    assert _attend(at, PACKED.to("meta")).shape == PACKED.shape
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert _attend(torch.empty(3, dtype=torch.int32), torch.empty(5, 4, 8)).shape == (5, 4, 8)
    y = torch.vmap(lambda q: _attend(AT, q))(torch.stack([PACKED, PACKED]))
    torch.testing.assert_close(y[0], _attend(AT))


@pytest.mark.parametrize("name", ["dtype", "shape"])
def test_formulas_in_graphs_are_checked(name: str) -> None:
    """Where a formula is compiled, Python has no words of its own."""
    torch._dynamo.reset()
    compiled = torch.compile(BAD[name], backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=re.escape(_refusal(BAD[name]))):
        compiled(backend="reference")


def test_graphs_drop_the_checks() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x: softmax(x, -1, backend="reference"),
        backend=aot_autograd(fw_compiler=keep),
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(X), torch.softmax(X, -1))
    assert "transformer_kernels" not in str(graphs[0].graph)


def test_checks_make_and_copy_no_tensor() -> None:
    """A kernel would read rows without a common stride from a copy."""
    for x in (X, X.t(), torch.randn(4, 3, 8).transpose(0, 1)[:, ::2], X[:1].expand(4, 8)):
        with torch.profiler.profile(profile_memory=True) as watched:
            DECLARED["softmax"].checks(x, None, 1.0, False, False)
        (event,) = (e for e in watched.key_averages() if e.key.endswith("::softmax_check"))
        assert event.cpu_memory_usage == 0
        assert not any("contiguous" in e.key for e in watched.key_averages())


def test_another_device_is_named() -> None:
    words = _refusal(lambda: attention(Q, Q.to("meta"), Q, backend="reference"))
    assert words == "attention: k is on meta, expected cpu"


def test_integers_with_gaps_are_read_as_they_are() -> None:
    ids = torch.tensor([[0, 99, 1, 99, 2, 99, 3, 99, 4, 99]]).expand(2, 10)[:, ::2]
    y = rope(Q, None, TABLE, TABLE, position_ids=ids, backend="reference")
    torch.testing.assert_close(y, rope(Q, None, TABLE, TABLE))


def test_checks_specialise_no_size() -> None:
    """A symbol stays one: the graph of one size serves another."""
    compiled = torch.compile(lambda x: softmax(x, -1), backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 7, 11):
            x = torch.randn(rows, 9 + rows)
            torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


def test_a_number_too_few_is_no_crash() -> None:
    with pytest.raises(RuntimeError, match="softmax: the metadata ends early"):
        _metadata.check_call("softmax_forward", "softmax", ["Tensor"], [X])
