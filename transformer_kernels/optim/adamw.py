# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from .._library import have_kernels_for
from ..ops._kinds import is_plain
from ..ops.optimizer._ops import adamw_
from ._lists import Entry, ListOptimizer, Scaling, loss_of
from ._states import Options

# Elements of a parameter, on average, below which the step is PyTorch's fused one: the time is the
# host's there, of which ours takes 6 us a parameter on an H100 and PyTorch's 3.
_TINY = {"cpu": 1 << 10, "cuda": 1 << 19}


class AdamW(ListOptimizer, torch.optim.AdamW):
    """AdamW in place of ``torch.optim.AdamW(fused=True)``: the arguments up to ``fused`` are
    PyTorch's, with the same results, and the state_dict of either loads into the other.

    A step is one pass over all parameters of a device, which counts the steps and reads and writes
    each number once. Where they are small on average (2^10 elements on the CPU, 2^19 on CUDA),
    contiguous and without options that PyTorch lacks, it is PyTorch's fused step, which takes the
    host less time, unless they are ``capturable`` or ``foreach``. A step waits for nothing.

    Args:
        params: an iterable of parameters, or of dicts of groups.
        lr: the learning rate; a tensor of one element is read at each step, where it is.
        betas: the decay of the two moments.
        eps: is added to the root of the second moment.
        weight_decay: times ``lr``, what the weights lose in each step.
        amsgrad: divides by the largest second moment so far.
        maximize: ascends.
        foreach: as PyTorch's; the step is the same.
        capturable: as PyTorch's, for CUDA graphs.
        differentiable: leaves the step to PyTorch, which autograd can follow.
        fused: as PyTorch's; None is True, unless ``foreach`` or ``differentiable`` is.
        master_weights: keeps float32 weights of parameters of 16 bits, in
            ``state[p]["master"]``; the parameter becomes what they round to, in the same pass.
        state_dtype: of the moments: None for that of the parameter (float32 beside a master),
            ``torch.float32``, ``torch.bfloat16`` with stochastic rounding, or ``torch.uint8`` for
            codes of 8 bits with a scale for each 256 elements, also rounded stochastically.
        stochastic_weights: rounds bfloat16 parameters without a master stochastically.
        max_norm: clips gradients to this norm over all of them, as
            ``torch.nn.utils.clip_grad_norm_`` does, without a pass of its own; ``p.grad`` stays.
            The norm before that is ``optimizer.grad_norm``.
        skip_nonfinite: leaves all as it is where the norm of the gradients is inf or NaN.
        seed: of stochastic rounding. The bits depend on it, the step and the place of an element,
            so that a run that resumes goes on as it would have.

    Example:
        >>> model = torch.nn.Linear(64, 64).bfloat16()
        >>> optimizer = tfk.optim.AdamW(
        ...     model.parameters(), lr=3e-4, master_weights=True, max_norm=1.0
        ... )
        >>> model(torch.randn(2, 64).bfloat16()).sum().backward()
        >>> optimizer.step()
        >>> optimizer.grad_norm.shape
        torch.Size([])
    """

    _step_supports_amp_scaling = False  # until the constructor sees that the step is fused
    _raw = staticmethod(adamw_)
    _moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_weights: bool = False,
        max_norm: float | None = None,
        skip_nonfinite: bool = False,
        seed: int = 0,
    ) -> None:
        self.options = Options(
            master_weights, state_dtype, stochastic_weights, max_norm, skip_nonfinite, seed
        )
        self.options.check("AdamW")
        if fused is None:
            fused = not (foreach or differentiable)
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
            capturable=capturable, differentiable=differentiable, fused=fused,
        )  # fmt: skip

    def _moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return (*self._moments, *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (
            group["lr"], *group["betas"], group["eps"], group["weight_decay"], group["maximize"]
        )  # fmt: skip

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step, and returns what ``closure`` returned, which computes the loss anew."""
        check = getattr(self, "_accelerator_graph_capture_health_check", None)
        (check or self._cuda_graph_capture_health_check)()
        loss = loss_of(closure)
        with torch.set_grad_enabled(bool(self.defaults["differentiable"])):
            entries = self._entries()
            if entries:
                self._update(entries)
        return loss

    def _update(self, entries: Sequence[Entry]) -> None:
        are_tiny = self._are_tiny(entries)
        stock = list(entries) if are_tiny else [e for e in entries if self._is_stock(e)]
        ours = [] if are_tiny else [e for e in entries if not self._is_stock(e)]
        scaling, clips = self._scaling(), True
        if stock:
            scaling, clips = self._clipped(entries, scaling), False
            for index in {entry.group for entry in stock}:
                self._step_stock([e for e in stock if e.group == index], scaling)
        if ours:
            self._step_lists(ours, scaling, clips)

    def _are_tiny(self, entries: Sequence[Entry]) -> bool:
        """Whether PyTorch's fused step takes less time: both then mostly pass tensors to C++, of
        which ours takes more."""
        options = self.options
        if options.max_norm or options.skip_nonfinite or not options.is_stock:
            return False
        if not all(group["fused"] for group in self.param_groups):
            return False
        if all(group["capturable"] for group in self.param_groups):
            return False  # a CUDA graph calls nothing
        params = [entry.param for entry in entries]
        tiny = _TINY.get(params[0].device.type, 0)
        if sum(map(Tensor.numel, params)) >= tiny * len(params):
            return False
        # PyTorch's step takes elements in the order of memory.
        moments = [[entry.state[name] for entry in entries] for name in self._moments]
        lists = (params, [entry.grad for entry in entries], *moments)
        return all(all(map(Tensor.is_contiguous, tensors)) for tensors in lists)

    def _is_stock(self, entry: Entry) -> bool:
        """Whether PyTorch makes the step of a parameter."""
        if self.param_groups[entry.group]["differentiable"]:
            return True
        has_kernel = have_kernels_for(entry.param) and is_plain(entry.grad)
        return self.options.is_stock and not has_kernel

    def _step_stock(self, entries: Sequence[Entry], scaling: Scaling) -> None:
        group = self.param_groups[entries[0].group]
        beta1, beta2 = group["betas"]
        if not group["fused"]:
            if scaling.found_inf is not None and bool(scaling.found_inf):  # waits for the device
                return
            for entry in entries:
                divisor = scaling.on(entry.grad.device).grad_scale
                if divisor is not None:
                    entry.grad.div_(divisor)
            scaling = Scaling(None, None)

        def column(name: str) -> list[Tensor]:
            return [entry.state[name] for entry in entries]

        adam(
            [entry.param for entry in entries],
            [entry.grad for entry in entries],
            column("exp_avg"),
            column("exp_avg_sq"),
            column("max_exp_avg_sq") if group["amsgrad"] else [],
            column("step"),
            amsgrad=group["amsgrad"],
            has_complex=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            grad_scale=scaling.grad_scale,
            found_inf=scaling.found_inf,
            decoupled_weight_decay=True,
        )
        if group["fused"]:  # PyTorch counts no writes then
            torch.autograd.graph.increment_version([entry.param for entry in entries])
