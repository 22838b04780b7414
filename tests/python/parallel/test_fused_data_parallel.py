# SPDX-License-Identifier: MIT
"""Fused models under DDP and FSDP2: gradients are those of one process with all rows, unfused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import transformer_kernels as tfk
from transformer_kernels.parallel import parallelize
from transformer_kernels.parallel.tensor_parallel import whole_tensors
from transformer_kernels.testing.processes import device

WORDS, TIME, STEPS = 32, 10, 2  # steps of which the gradients are accumulated
SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
# The classes are imported once, before the processes are made.
THEIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "GPT-2": (
        transformers.GPT2LMHeadModel, transformers.GPT2Config,
        {"bos_token_id": 0, "eos_token_id": 0},
    ),
}  # fmt: skip


@cache
def _mesh() -> Any:
    sizes = (2, dist.get_world_size() // 2)
    return init_device_mesh(device().type, sizes, mesh_dim_names=("dp", "tp"))


def _pair(name: str, frozen: str = "") -> tuple[Any, Any]:
    """A model as it is and a fused one, in float64. Parameters with ``frozen`` in their name do not
    train."""
    kind, config, options = THEIRS[name]
    plain = kind(config(**SIZES, **options)).double().eval()
    for path, parameter in plain.named_parameters():
        parameter.requires_grad_(not frozen or frozen not in path)
    fused = copy.deepcopy(plain)
    assert tfk.fuse(fused, measure=False).sites
    return plain, fused


def _loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def _tokens() -> torch.Tensor:
    """Rows of each step and of each of two replicas, the same in every process."""
    return torch.randint(WORDS, (STEPS, 2, 2, TIME))


def _expected(plain: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    losses = [_loss(plain, rows.flatten(0, 1)) for rows in tokens]
    sum(losses).backward()  # type: ignore[union-attr]
    return torch.stack(losses).detach(), {n: p.grad for n, p in plain.named_parameters()}


def _check(model: Any, found: list[torch.Tensor], replicas: Any, plain: Any, tokens: Any) -> None:
    losses, gradients = _expected(plain, tokens)
    mean = torch.stack(found).detach()
    dist.all_reduce(mean, group=replicas)
    torch.testing.assert_close(mean / dist.get_world_size(replicas), losses)
    own = whole_tensors(model, {n: p.grad for n, p in model.named_parameters()})
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (own[name] is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(own[name], gradient, msg=lambda m, n=name: f"{n}: {m}")


def _accumulated(
    model: Any, tokens: torch.Tensor, rank: int, last: Callable[[bool], Any]
) -> list[torch.Tensor]:
    """The losses of the steps; ``last`` opens a context that says whether a step reduces."""
    losses = []
    for step, rows in enumerate(tokens):
        with last(step == STEPS - 1):
            loss = _loss(model, rows[rank])
            loss.backward()
        losses.append(loss)
    return losses


# ---- cases --------------------------------------------------------------------------------------


def data_parallel() -> None:
    """DDP, with steps that are not reduced, and with frozen parts."""
    transformers.logging.set_verbosity_error()
    replicas = _mesh()["dp"]
    for name, frozen in (("GPT-2", ""), ("Llama", "mlp")):
        plain, fused = _pair(name, frozen)
        model = DistributedDataParallel(fused, process_group=replicas.get_group())

        @contextmanager
        def reduces(is_last: bool, model: Any = model) -> Iterator[None]:
            if is_last:
                yield
            else:
                with model.no_sync():
                    yield

        tokens = _tokens()
        losses = _accumulated(model, tokens, replicas.get_local_rank(), reduces)
        _check(fused, losses, replicas.get_group(), plain, tokens)


def _layers(model: Any) -> Any:
    return model.model.layers if hasattr(model, "model") else model.transformer.h


def _fully_sharded(model: Any, mesh: Any) -> Any:
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@contextmanager
def _reduces(model: Any, is_last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(is_last)
    yield


def fully_sharded() -> None:
    """FSDP2 around each layer of a fused model, with the same steps."""
    replicas = _mesh()["dp"]
    for name, frozen in (("GPT-2", "attn"), ("Llama", "")):
        plain, fused = _pair(name, frozen)
        _fully_sharded(fused, replicas)
        tokens = _tokens()
        losses = _accumulated(
            fused, tokens, replicas.get_local_rank(), lambda last, m=fused: _reduces(m, last)
        )
        _check(fused, losses, replicas.get_group(), plain, tokens)


def fully_sharded_and_split() -> None:
    """A mesh of two dimensions: tensor parallelism in the rows, with tokens that are split between
    layers or not, FSDP2 in the columns."""
    mesh = _mesh()
    for name in THEIRS:
        plain, fused = _pair(name)
        parallelize(fused, mesh["tp"], sequence_parallel=name == "GPT-2")
        _fully_sharded(fused, mesh["dp"])
        tokens = _tokens()
        losses = _accumulated(
            fused, tokens, mesh["dp"].get_local_rank(), lambda last, m=fused: _reduces(m, last)
        )
        _check(fused, losses, mesh["dp"].get_group(), plain, tokens)


PAIR = [data_parallel, fully_sharded]
CASES = [*PAIR, fully_sharded_and_split]


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES, pair=PAIR)
