# SPDX-License-Identifier: MIT
"""Linear layers and MLPs. Linear layers are subclasses of PyTorch's, so that isinstance checks keep
working and state_dicts fit both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._torch import forwards_of, is_bare
from ..ops.linear.linear import linear, linear_act
from ..ops.linear.mlp import drop_and_add, gated_mlp, mlp
from ..ops.pointwise._ops import GATED


class Linear(nn.Linear):
    """:class:`torch.nn.Linear`: its constructor and ``state_dict``.

    Args:
        args: the arguments of :class:`torch.nn.Linear`, by position.
        backend: as for :func:`transformer_kernels.functional.linear`.
        kwargs: its arguments by keyword.

    >>> layer = tfk.nn.Linear(64, 32)
    >>> layer(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 32])
    """

    backend: str = "auto"  # serves modules saved without it

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backend = backend

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return linear(input, self.weight, self.bias, backend=self.backend)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.backend == "auto" else f"{text}, backend={self.backend!r}"


class LinearAct(Linear):
    """A linear layer and an activation:
    :func:`transformer_kernels.functional.linear_act` as a module.

    Args:
        args: the arguments of :class:`torch.nn.Linear`, by position.
        activation: an activation of the function: ``"gelu"``, ``"gelu_tanh"``, ``"silu"``,
            ``"relu"``, ``"relu_squared"`` or ``"quick_gelu"``.
        kwargs: arguments of :class:`Linear` by keyword.

    The parameters are those of :class:`torch.nn.Linear`, and so are shapes and dtypes.

    >>> layer = tfk.nn.LinearAct(64, 256, activation="gelu_tanh")
    >>> layer(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 256])
    """

    def __init__(self, *args: Any, activation: str = "gelu", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return linear_act(input, self.weight, self.bias, self.activation, backend=self.backend)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class FusedLinearReLU(LinearAct):
    """:class:`LinearAct` with ``relu``.

    Args:
        args: the arguments of :class:`torch.nn.Linear`, by position.
        kwargs: arguments of :class:`Linear` by keyword.

    >>> layer = tfk.nn.FusedLinearReLU(64, 32)
    >>> bool((layer(torch.randn(5, 64)) >= 0).all())
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, activation="relu", **kwargs)


_LINEAR, _LINEAR_ACT = forwards_of(Linear), forwards_of(LinearAct)


class _Behind(nn.Module):
    """The base of the MLPs: dropout and residual after the last layer."""

    dropout = 0.0
    recompute = 1

    def __init__(self, dropout: float, recompute: int) -> None:
        super().__init__()
        self.dropout = dropout
        self.recompute = recompute

    def _behind(self, y: Tensor, residual: Tensor | None) -> Tensor:
        return drop_and_add("mlp", y, None, residual, self.dropout, self.training, None)

    def _options(self, residual: Tensor | None) -> dict[str, Any]:
        return {
            "residual": residual,
            "dropout_p": self.dropout,
            "training": self.training,
            "recompute": self.recompute,
        }

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, recompute={self.recompute}"


class MLP(_Behind):
    """``fc2(act(fc1(x)))``, followed by dropout and a residual. The keys are ``fc1.weight``,
    ``fc1.bias``, ``fc2.weight`` and ``fc2.bias``.

    Args:
        features: K, the columns of the input.
        hidden_features: F, the columns between the layers.
        out_features: N, the columns of the result; by default K.
        activation: as for :class:`LinearAct`.
        bias: whether the layers have a bias.
        dropout: the probability that an element of the result is dropped, in training.
        recompute: which activations are saved for the backward pass, 0 (most) to 2 (least); as for
            :func:`functional.mlp <transformer_kernels.functional.mlp>`.
        device, dtype, backend: as of :class:`torch.nn.Linear` and :class:`Linear`, of each layer.

    The call takes the input and a ``residual``, which is added to the result. The layers are called
    as modules, without fusion, if another module stands in the place of one (an adapter), a hook is
    set on one or on all modules, a ``forward`` was replaced or a weight is quantised.

    >>> mlp = tfk.nn.MLP(64, 256, activation="gelu_tanh", dropout=0.1)
    >>> x = torch.randn(2, 5, 64)
    >>> mlp(x, residual=x).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        activation: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        recompute: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout, recompute)
        out_features = features if out_features is None else out_features
        options: dict[str, Any] = {"device": device, "dtype": dtype, "backend": backend}
        self.fc1 = LinearAct(features, hidden_features, bias, activation=activation, **options)
        self.fc2 = Linear(hidden_features, out_features, bias, **options)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        fc1, fc2 = self.fc1, self.fc2
        if not (is_bare(fc1, _LINEAR_ACT) and is_bare(fc2, _LINEAR)):
            return self._behind(fc2(fc1(input)), residual)
        return mlp(
            input, fc1.weight, fc1.bias, fc2.weight, fc2.bias, fc1.activation,
            backend=fc1.backend, **self._options(residual),
        )  # fmt: skip


class GatedMLP(_Behind):
    """``down_proj(act(gate_proj(x)) * up_proj(x))``, followed by dropout and a residual. The keys
    are those of Hugging Face's Llama.

    Args:
        features: K, the columns of the input.
        hidden_features: F, the columns of gate and up.
        out_features: N, the columns of the result; by default K.
        activation: ``"swiglu"``, ``"geglu"``, ``"geglu_tanh"`` or ``"reglu"``.
        bias: whether the layers have a bias.
        dropout: as for :class:`MLP`.
        recompute: as for :class:`MLP`; see
            :func:`functional.gated_mlp <transformer_kernels.functional.gated_mlp>`.
        device, dtype, backend: as of :class:`torch.nn.Linear` and :class:`Linear`, of each layer.

    The call takes the input and a ``residual``. The layers are called as modules in the same cases
    as those of :class:`MLP`.

    >>> mlp = tfk.nn.GatedMLP(64, 176, activation="swiglu")
    >>> mlp(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        activation: str = "swiglu",
        bias: bool = False,
        dropout: float = 0.0,
        recompute: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout, recompute)
        out_features = features if out_features is None else out_features
        options: dict[str, Any] = {"device": device, "dtype": dtype, "backend": backend}
        self.activation = activation
        self.gate_proj = Linear(features, hidden_features, bias, **options)
        self.up_proj = Linear(features, hidden_features, bias, **options)
        self.down_proj = Linear(hidden_features, out_features, bias, **options)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if not (is_bare(gate, _LINEAR) and is_bare(up, _LINEAR) and is_bare(down, _LINEAR)):
            hidden = GATED[self.activation].call(gate(input), up(input), None, None)
            return self._behind(down(hidden), residual)
        return gated_mlp(
            input, gate.weight, up.weight, down.weight, self.activation, bias=gate.bias,
            up_bias=up.bias, down_bias=down.bias, backend=gate.backend, **self._options(residual),
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, {super().extra_repr()}"
