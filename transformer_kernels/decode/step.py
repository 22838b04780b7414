# SPDX-License-Identifier: MIT
"""The step of a token through a model of Llama's shape, in one call of C++.

A plan holds the weights, packed in the order in which the step reads them; a session holds the keys
and values of one sequence, and pages hold those of many, whose rows run together. Weights keep
their format: 32, 16, 8 or 4 bits an element.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    as_choice,
    as_count,
    as_flag,
    as_integer,
    as_number,
    check_kind,
    check_tensors,
    translate,
)
from .._library import BUILD_HINT, NAMESPACE, has_kernels

_OP = "decode_step"
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}  # of the C++ enum
_WEIGHTS = ("q", "k", "v", "o", "gate", "up", "down")


class StepWeight(NamedTuple):
    """A matrix ``(N, K)`` of a layer, as ``torch.nn.Linear`` has it.

    Args:
        values: float32, float16 or bfloat16 ``(N, K)``; or int8 ``(N, K)``, where an element is
            ``value * scale``; or uint8 ``(N, K / 2)`` of 4 bits: byte ``i`` of a row has column
            ``2 i`` in its low nibble and ``2 i + 1`` in its high one. Without minimums a nibble is
            a number of two's complement, from -8 to 7, and an element is ``number * scale``; with
            minimums it is from 0 to 15, and an element is ``number * scale + minimum``.
        scales: float16 ``(N, K / group)``, with a group of 32, 64 or 128.
        minimums: as ``scales``; of 4 bits alone.
    """

    values: Tensor
    scales: Tensor | None = None
    minimums: Tensor | None = None


def _call(name: str, *arguments: Any) -> Any:
    if not has_kernels:
        raise ArgumentValueError(f"{_OP}: the native library is missing; {BUILD_HINT}")
    try:
        return getattr(getattr(torch.ops, NAMESPACE), name)(*arguments)
    except RuntimeError as error:
        raise translate(_OP, error) from None


def _free(name: str, number: int) -> None:
    getattr(getattr(torch.ops, NAMESPACE), name)(number)


def _parts(name: str, weight: Any) -> list[Tensor | None]:
    """The three tensors of a weight, all None where there is none."""
    if weight is None:
        return [None, None, None]
    found = (weight, None, None) if isinstance(weight, Tensor) else weight
    if not isinstance(found, tuple) or not isinstance(found[0], Tensor):
        kind = type(weight).__name__
        raise ArgumentTypeError(f"{_OP}: {name} is {kind}, expected a Tensor or a StepWeight")
    return [None if tensor is None else tensor.detach() for tensor in StepWeight(*found)]


class StepPlan:
    """The weights of a model, packed for steps on the CPU.

    Layers are added in their order, and then what stands before and after them. A tensor that was
    given may be freed at once. Vectors, such as biases, are float32, float16 or bfloat16.

    >>> table = torch.outer(torch.arange(32.0), 10000.0 ** -torch.linspace(0, 1, 4))
    >>> plan = tfk.decode.StepPlan(hidden=32, heads=4, kv_heads=2, head_dim=8, inner=64, vocab=96,
    ...                            cosines=table.cos(), sines=table.sin())
    >>> rows = {"q": 32, "k": 16, "v": 16, "o": 32, "gate": 64, "up": 64}
    >>> weights = {name: torch.randn(count, 32) / 6 for name, count in rows.items()}
    >>> plan.add_layer(attention_norm=torch.ones(32), mlp_norm=torch.ones(32),
    ...                down=torch.randn(32, 64) / 8, **weights)
    >>> plan.finish(embedding=torch.randn(96, 32), final_norm=torch.ones(32))
    >>> session = tfk.decode.StepSession(plan, positions=32)
    >>> best, logits = session.step([1, 2, 3], logits=True)
    >>> best.shape, logits.shape, session.length
    (torch.Size([1]), torch.Size([1, 96]), 3)

    Args:
        hidden, heads, kv_heads, head_dim, inner, vocab: the model's sizes; ``kv_heads`` divides
            ``heads``, and ``head_dim`` is even.
        cosines, sines: float32 ``(positions, R / 2)``, the rotation of ``R`` of each head's
            dimensions, as :func:`transformer_kernels.functional.rope` takes it.
        interleaved: whether neighbours are turned rather than an element of each half. GGUF files
            of Llama have their queries and keys in that order.
        eps: of all RMSNorms.
        scale: of the scores, ``1 / sqrt(head_dim)`` by default.
        softcap, logit_softcap: scores, or logits, become ``cap * tanh(score / cap)``; 0 for none.
        embedding_scale: a factor of embeddings.
        activation: "silu", "gelu" or "gelu_tanh", of the gate.
        parts: into how many parts the weights are divided: ``torch.get_num_threads()`` by default.
            Threads take whole parts. Results depend on ``parts``, and not on the threads.

    Raises:
        ValueError, TypeError: where an argument is not as it should be; the message names it.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        inner: int,
        vocab: int,
        cosines: Tensor,
        sines: Tensor,
        interleaved: bool = False,
        eps: float = 1e-5,
        scale: float | None = None,
        softcap: float = 0.0,
        logit_softcap: float = 0.0,
        embedding_scale: float = 1.0,
        activation: str = "silu",
        parts: int | None = None,
    ) -> None:
        sizes = {
            "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "inner": inner, "vocab": vocab,
        }  # fmt: skip
        numbers = {
            "eps": eps, "scale": 0.0 if scale is None else scale, "softcap": softcap,
            "logit_softcap": logit_softcap, "embedding_scale": embedding_scale,
        }  # fmt: skip
        check_tensors(_OP, {"cosines": cosines, "sines": sines})
        self.vocab = vocab
        self.parts = as_integer(_OP, "parts", torch.get_num_threads() if parts is None else parts)
        self._number = _call(
            "decode_plan",
            [
                *(as_integer(_OP, name, size) for name, size in sizes.items()),
                int(as_flag(_OP, "interleaved", interleaved)),
                as_choice(_OP, "activation", activation, _ACTIVATIONS, ArgumentTypeError),
                self.parts,
            ],
            [as_number(_OP, name, number) for name, number in numbers.items()],
            cosines.detach(),
            sines.detach(),
        )
        weakref.finalize(self, _free, "decode_plan_free", self._number)

    def add_layer(
        self,
        *,
        attention_norm: Tensor,
        mlp_norm: Tensor,
        q: StepWeight | Tensor,
        k: StepWeight | Tensor,
        v: StepWeight | Tensor,
        o: StepWeight | Tensor,
        gate: StepWeight | Tensor,
        up: StepWeight | Tensor,
        down: StepWeight | Tensor,
        q_bias: Tensor | None = None,
        k_bias: Tensor | None = None,
        v_bias: Tensor | None = None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        window: int = 0,
    ) -> None:
        """Packs the next layer.

        Args:
            attention_norm, mlp_norm: ``(hidden)``, of the two RMSNorms.
            q_norm, k_norm: ``(head_dim)``, an RMSNorm of each head before the rotation.
            window: how many of the last positions a row sees, its own included; 0 for all.
        """
        given = zip(_WEIGHTS, (q, k, v, o, gate, up, down), strict=True)
        weights = [tensor for name, weight in given for tensor in _parts(name, weight)]
        optional = {
            "q_bias": q_bias, "k_bias": k_bias, "v_bias": v_bias, "q_norm": q_norm,
            "k_norm": k_norm,
        }  # fmt: skip
        vectors = {"attention_norm": attention_norm, "mlp_norm": mlp_norm, **optional}
        check_tensors(_OP, vectors, *optional)
        detached = [None if vector is None else vector.detach() for vector in vectors.values()]
        _call(
            "decode_plan_layer", self._number, weights, detached, as_integer(_OP, "window", window)
        )

    def finish(
        self,
        *,
        embedding: StepWeight | Tensor,
        final_norm: Tensor,
        head: StepWeight | Tensor | None = None,
    ) -> None:
        """Packs the embedding ``(vocab, hidden)`` and the head, which is the embedding where it is
        None."""
        check_tensors(_OP, {"final_norm": final_norm})
        weights = _parts("embedding", embedding) + _parts("head", head)
        _call("decode_plan_finish", self._number, weights, final_norm.detach())

    @property
    def packed_bytes(self) -> int:
        """The size of the packed weights."""
        return int(_call("decode_plan_bytes", self._number))

    def read(self) -> int:
        """Reads the packed weights once, on the threads of a step, and returns their sum: no step
        can be faster, unless a cache holds the model."""
        return int(_call("decode_plan_read", self._number))


def barrier_nanoseconds(rounds: int = 10000) -> float:
    """The time in which the threads of a step meet, which they do twice a layer. Where it is large,
    their cores are far apart, or others use them.

    >>> tfk.decode.barrier_nanoseconds(rounds=100) > 0
    True

    Args:
        rounds: how often they meet; the time is a mean.
    """
    return float(_call("decode_barrier", as_count("barrier_nanoseconds", "rounds", rounds)))


class StepSession:
    """The keys and values of one sequence, in float16. It keeps its plan alive.

    >>> table = torch.ones(32, 4)
    >>> plan = tfk.decode.StepPlan(hidden=32, heads=4, kv_heads=2, head_dim=8, inner=64, vocab=96,
    ...                            cosines=table, sines=0 * table)
    >>> plan.finish(embedding=torch.eye(96, 32), final_norm=torch.ones(32))
    >>> session = tfk.decode.StepSession(plan, positions=32)
    >>> session.step([5, 7], outputs=2)[0].tolist()
    [5, 7]
    >>> session.truncate(1)
    >>> session.length
    1

    Args:
        plan: the model, finished.
        positions: how many the sequence may have, at most the rows of the plan's tables.
    """

    def __init__(self, plan: StepPlan, positions: int) -> None:
        check_kind(_OP, "plan", plan, StepPlan, "a StepPlan")
        count = as_integer(_OP, "positions", positions)
        self._number = _call("decode_session", plan._number, count)
        weakref.finalize(self, _free, "decode_session_free", self._number)

    @property
    def length(self) -> int:
        """How many positions are filled."""
        return int(_call("decode_session_length", self._number))

    def truncate(self, length: int) -> None:
        """Forgets all positions but the first ``length``."""
        _call("decode_session_truncate", self._number, as_integer(_OP, "length", length))

    def step(
        self,
        tokens: Tensor | Sequence[int],
        *,
        outputs: int = 1,
        logits: bool = False,
        activations: int = 16,
    ) -> tuple[Tensor, Tensor | None]:
        """Appends tokens to the sequence.

        Args:
            tokens: ``(T)``, of int32 or int64; a prompt, or those that are to be verified at once.
            outputs: of how many of the last tokens the results are wanted; 0 for none.
            logits: whether the logits are among them.
            activations: how many bits activations have that meet weights of 8 or 4 bits: 16 or 8.
                With 16, errors are those of the cache's float16; with 8 they are some 40 times as
                large, and several tokens at once are faster.

        Returns:
            The tokens with the largest logits, ``(outputs)`` of int64, the first of equals; and the
            logits, ``(outputs, vocab)`` of float32, or None.

        Raises:
            ValueError, TypeError: the message says which argument is wrong. Nothing was appended.
        """
        logits = as_flag(_OP, "logits", logits)
        if as_integer(_OP, "activations", activations) not in (16, 8):
            raise ArgumentValueError(f"{_OP}: activations is {activations}, expected 16 or 8")
        best, values = _call(
            "decode_step", self._number, _as_integers("tokens", tokens),
            as_integer(_OP, "outputs", outputs), logits, activations,
        )  # fmt: skip
        return best, values if logits else None


class StepPages:
    """Memory for keys and values of many sequences, in float16. It keeps its plan alive. A page has
    64 positions of all layers; who holds which, a :class:`PageTable` of pages of 64 knows.

    >>> plan = tfk.decode.StepPlan(hidden=32, heads=4, kv_heads=2, head_dim=8, inner=64, vocab=96,
    ...                            cosines=torch.ones(64, 4), sines=torch.zeros(64, 4))
    >>> plan.finish(embedding=torch.eye(96, 32), final_norm=torch.ones(32))
    >>> pages = tfk.decode.StepPages(plan, 2)
    >>> def int32(*x): return torch.tensor(x, dtype=torch.int32)
    >>> logits = pages.step([5, 7, 9], int32(0, 2, 3), int32(0, 0), int32([1], [0]), [1, 2])
    >>> logits.argmax(1).tolist()
    [7, 9]

    Args:
        plan: the model, finished.
        count: how many pages; each takes memory when it is first written.
    """

    size = 64  # positions of a page

    def __init__(self, plan: StepPlan, count: int) -> None:
        self._number = _call("decode_pages", plan._number, count)
        weakref.finalize(self, _free, "decode_pages_free", self._number)

    def copy(self, page: int, to: int) -> None:
        """Makes page ``to`` equal to ``page``."""
        _call("decode_pages_copy", self._number, page, to)

    def step(
        self,
        tokens: Tensor | Sequence[int],
        cu_seqlens: Tensor,
        lengths: Tensor,
        page_table: Tensor,
        outputs: Tensor | Sequence[int],
        *,
        activations: int = 16,
    ) -> Tensor:
        """Appends tokens to sequences, which write to no page that another one reads. Each row has
        the bits that :meth:`StepSession.step` would give it.

        Args:
            tokens: ``(N)`` of int32 or int64, one sequence after the other.
            cu_seqlens: ``(B + 1)`` of int32, where each sequence's tokens begin.
            lengths: ``(B)`` of int32, how many positions of each are filled.
            page_table: ``(B, P)`` of int32, the pages of each, as far as its new tokens reach.
            outputs: ``(M)`` of int64, the tokens whose logits are wanted, in ascending order.
            activations: as in :meth:`StepSession.step`.

        Returns:
            The logits, ``(M, vocab)`` of float32.

        Raises:
            ValueError, TypeError: the message says which argument is wrong. Nothing was appended.
        """
        logits: Tensor = _call(
            "decode_pages_step", self._number, _as_integers("tokens", tokens), cu_seqlens, lengths,
            page_table, _as_integers("outputs", outputs), activations,
        )  # fmt: skip
        return logits


def _as_integers(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    check_kind(_OP, name, values, Sequence, "a Tensor or a sequence of ints")
    return torch.tensor([as_integer(_OP, name, value) for value in values], dtype=torch.int64)
