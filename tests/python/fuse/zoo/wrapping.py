# SPDX-License-Identifier: MIT
"""Situations in which another library wraps the model: adapters, parallel training, a trainer."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from .compare import Results, assert_close, forward, train
from .running import by_the_rule
from .subject import Pair, Subject, is_pretrained, situation, writes_text

# ---- adapters -----------------------------------------------------------------------------------


def linear_layers(model: nn.Module) -> list[str]:
    """Every linear layer but the head and those that PEFT refuses: MultiheadAttention's own, and
    Mamba's outputs."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    is_mamba = type(model).__name__.startswith("Mamba")
    return [
        name for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
        and type(module).__name__ != "NonDynamicallyQuantizableLinear"
        and module is not head
        and not (is_mamba and name.endswith("out_proj"))
    ]  # fmt: skip


def adapted(model: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=linear_layers(model), init_lora_weights=False, lora_dropout=0.0
    )
    torch.manual_seed(3)
    return peft.get_peft_model(model, config).eval()


@situation()
def lora_after(subject: Subject) -> None:
    """Adapters in every linear layer of a fused model; switched off, merged, and taken out."""
    pair = subject.pair()
    before = forward(pair.ours, pair.inputs)
    ours, stock = adapted(pair.ours), adapted(pair.stock)
    adapter = Pair(stock, ours, pair.inputs, pair.plan)
    _adapters_train_and_move(adapter, before)


@situation()
def lora_before(subject: Subject) -> None:
    stock = subject.family.build()
    before = forward(stock, subject.inputs())
    stock = adapted(stock)
    ours = copy.deepcopy(stock)
    inputs = subject.inputs()
    adapter = Pair(stock, ours, inputs, subject.fuse(ours, inputs))
    _adapters_train_and_move(adapter, before)


def _adapters_train_and_move(adapter: Pair, without: Results) -> None:
    for model in adapter.both:
        model.train()
    by_the_rule(adapter, train)
    for model in adapter.both:
        model.eval()
    inputs = adapter.inputs
    moved = train(adapter.stock, inputs)[_main(without)] - without[_main(without)]
    assert float(moved.abs().max()) > 1e-3  # the adapters do something
    with contextlib.ExitStack() as stack:
        for model in adapter.both:
            stack.enter_context(model.disable_adapter())
        by_the_rule(adapter, forward)
        assert_close(forward(adapter.ours, inputs), without)
    for model in adapter.both:
        model.merge_adapter()
    assert_close(*adapter.in_both(lambda model: forward(model, inputs)))
    for model in adapter.both:
        model.unmerge_adapter()
    bases = [model.merge_and_unload() for model in adapter.both]
    assert_close(*(forward(model, inputs) for model in bases))
    assert list(bases[0].state_dict()) == list(bases[1].state_dict())


def _main(results: Results) -> str:
    return "logits" if "logits" in results else "y"


# ---- parallel training --------------------------------------------------------------------------


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


@situation()
def distributed_data_parallel(subject: Subject) -> None:
    pair = subject.pair()
    with one_process():
        wrapped = [nn.parallel.DistributedDataParallel(m.train(), find_unused_parameters=True)
                   for m in pair.both]  # fmt: skip
        for seed in (1, 2):
            inputs = subject.inputs(seed=seed)
            assert_close(*(train(model, inputs) for model in wrapped))


@situation()
def fully_sharded(subject: Subject) -> None:
    """FSDP2 over one process, put on the blocks and the root of a fused model."""
    from torch.distributed.fsdp import fully_shard

    pair = subject.pair()
    with one_process():
        mesh = dist.init_device_mesh("cpu", (1,))
        for model in pair.both:
            model.train()
            for block in blocks(model):
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        for seed in (1, 2):
            inputs = subject.inputs(seed=seed)
            ours, stock = (_local(train(model, inputs)) for model in pair.both)
            assert_close(ours, stock)


def blocks(model: nn.Module) -> list[nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    found = [block for group in lists for block in group if len([*block.modules()]) > 6]
    return found[::-1]  # FSDP takes inner blocks before those that hold them


def _local(results: Results) -> Results:
    return {name: x.full_tensor() if hasattr(x, "full_tensor") else x
            for name, x in results.items()}  # fmt: skip


@situation()
def offloaded(subject: Subject) -> None:
    """accelerate keeps the weights elsewhere, and brings them for each module's call."""
    accelerate = pytest.importorskip("accelerate")
    pair = subject.pair()
    for model in pair.both:
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        assert any(x.is_meta for x in model.parameters())
    try:
        stock = forward(pair.stock, pair.inputs)
    except RuntimeError as error:
        pytest.skip(f"stock fails: {error}")
    assert_close(forward(pair.ours, pair.inputs), stock)


# ---- a trainer ----------------------------------------------------------------------------------


@situation(lambda family: is_pretrained(family) and writes_text(family), "is not of transformers")
def trainer(subject: Subject) -> None:
    """Weights and losses after steps of transformers' Trainer, which counts a batch's tokens."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    rows = [_row(subject, seed) for seed in range(8)]

    def run(model: nn.Module) -> Results:
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, optim="sgd",
                learning_rate=1e-2, save_strategy="no", seed=3,
            )  # fmt: skip
            made = transformers.Trainer(model, arguments, train_dataset=rows)
            made.remove_callback(transformers.PrinterCallback)
            made.train()
        losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
        assert len(losses) == 2
        return {"losses": torch.tensor(losses), **dict(model.named_parameters())}

    pair = subject.pair()
    start = {name: x.detach().clone() for name, x in pair.stock.named_parameters()}
    ours, stock = pair.in_both(run)
    assert any(not torch.equal(start[name], x) for name, x in stock.items() if name in start)
    assert_close(ours, stock, 1e-4)


def _row(subject: Subject, seed: int) -> dict[str, Tensor]:
    return {name: x[0] for name, x in subject.inputs(1, seed=seed).items()}
