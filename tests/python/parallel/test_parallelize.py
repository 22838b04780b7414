# SPDX-License-Identifier: MIT
"""Tensor parallelism: ranks together compute what the whole model computes, and its gradients."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import transformer_kernels as tfk
import transformer_kernels.parallel.styles
from transformer_kernels.fuse.record import tensors_in
from transformer_kernels.parallel import Traffic, parallelize, whole_state_dict
from transformer_kernels.parallel.randomness import Fork
from transformer_kernels.parallel.tensor_parallel import whole_tensors
from transformer_kernels.testing.processes import device

WORDS = 66  # ranks of four have unequal shares of the vocabulary
SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


@cache
def _meshes() -> dict[int, Any]:
    """Meshes of this process, by their sizes."""
    kind, pairs = device().type, dist.get_world_size() // 2
    both = init_device_mesh(kind, (pairs, 2), mesh_dim_names=("dp", "tp"))
    return {2 * pairs: init_device_mesh(kind, (2 * pairs,)), 2: both["tp"], 0: both}


def _ours(**options: Any) -> nn.Module:
    sizes = {"vocab_size": WORDS, "context": 64, "dim": 32, "num_layers": 2, "num_heads": 4}
    config = tfk.models.LanguageModelConfig(**sizes, **options)
    return tfk.models.LanguageModel(config, "torch")


def _theirs(name: str, **sizes: Any) -> Any:
    kind, config, options = THEIRS[name]
    return kind(config(**{**SIZES, **options, **sizes}))


_LLAMA = {"norm": "rms_norm", "activation": "swiglu", "bias": False, "positions": "rope"}
# The classes are imported once, before the processes are made.
THEIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "GPT-2": (
        transformers.GPT2LMHeadModel, transformers.GPT2Config,
        {"bos_token_id": 0, "eos_token_id": 0},
    ),
    "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "Qwen3": (
        transformers.Qwen3ForCausalLM, transformers.Qwen3Config,
        {"num_key_value_heads": 2, "head_dim": 8},
    ),
    "BERT": (transformers.BertForMaskedLM, transformers.BertConfig, {}),
    "Gemma 2": (
        transformers.Gemma2ForCausalLM, transformers.Gemma2Config,
        {"num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8,
         "attn_implementation": "eager", "attn_logit_softcapping": 0.5,
         "final_logit_softcapping": 2.0, "initializer_range": 0.2},
    ),
    "T5": (
        transformers.T5ForConditionalGeneration, transformers.T5Config,
        {"d_kv": 8, "d_ff": 64, "num_decoder_layers": 2, "decoder_start_token_id": 0,
         "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16},
    ),
}  # fmt: skip
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ours": _ours,
    "ours, tied": lambda: _ours(tie_weights=True),
    "ours, as Llama": lambda: _ours(num_kv_heads=2, **_LLAMA),
    **{name: partial(_theirs, name) for name in THEIRS},
}


def _made(name: str) -> Any:
    """A model is the same in every process, and of float64, in which sums differ by little."""
    return MODELS[name]().double().eval()


def _loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    if isinstance(model, tfk.models.LanguageModel):
        return model(tokens, tokens)
    loss: torch.Tensor = model(tokens, labels=tokens).loss
    return loss


def _tokens(time: int = 17) -> torch.Tensor:
    return torch.randint(WORDS, (2, time))


def _split(model: nn.Module, mesh: Any, plan: Any = "auto", **options: Any) -> Any:
    inputs = (_tokens(),) if isinstance(model, tfk.models.LanguageModel) else None
    return parallelize(model, mesh, plan, inputs=inputs, **options)


def _check(whole: Any, split: Any, time: int = 17, **tolerance: float) -> None:
    """The loss and all gradients, twice: they are the same to the bit."""
    tokens = _tokens(time)
    expected = _loss(whole, tokens)
    expected.backward()
    runs = []
    for _ in range(2):
        split.zero_grad()
        loss = _loss(split, tokens)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        runs.append(whole_tensors(split, {n: p.grad for n, p in split.named_parameters()}))
    for name, parameter in whole.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(runs[0][name], parameter.grad, **tolerance)
            assert torch.equal(runs[0][name], runs[1][name]), name


def _fused(model: Any) -> Any:
    if isinstance(model, tfk.models.LanguageModel):
        model.kernels = "ours"
    else:
        assert tfk.fuse(model, measure=False).sites
    return model


# ---- cases --------------------------------------------------------------------------------------


def every_model() -> None:
    """The last pair of processes splits fused models, the other one models as they are."""
    is_last = dist.get_rank() // 2 == dist.get_world_size() // 2 - 1
    transformers.logging.set_verbosity_error()
    for name in MODELS:
        whole = _made(name)
        split = copy.deepcopy(whole)
        _split(_fused(split) if is_last else split, _meshes()[2])
        found, state = whole_state_dict(split), whole.state_dict()
        assert found.keys() == state.keys()
        assert all(torch.equal(found[n], x) for n, x in state.items())
        _check(whole, split)


def tokens_are_split_between_groups() -> None:
    """The models with norms before, behind and both, as they are and fused; a residual that enters
    a layer, or its second sum; parameters of norms, biases and scales; two stacks of layers, one of
    which reads the other's result. Gemma sums gradients of its norms' weights over tokens in
    float32."""
    is_last = dist.get_rank() // 2 == dist.get_world_size() // 2 - 1
    of_float32: dict[str, dict[str, float]] = {"Gemma 2": {"rtol": 1e-6, "atol": 1e-6}}
    for name in ("ours, as Llama", "GPT-2", "Qwen3", "BERT", "Gemma 2", "T5"):
        whole = _made(name)
        split = copy.deepcopy(whole)
        found = _split(_fused(split) if is_last else split, _meshes()[2], sequence_parallel=True)
        assert len(found.found.between.rows) == (10 if name == "T5" else 4)
        assert "1 / 2 of tokens" in str(found)
        assert whole_state_dict(split).keys() == whole.state_dict().keys()
        _check(whole, split, 16, **of_float32.get(name, {}))


class Named(NamedTuple):
    hidden: torch.Tensor
    other: int | None = 3


class Pair(tuple):  # type: ignore[type-arg]
    def __new__(cls, hidden: torch.Tensor) -> Pair:
        made = super().__new__(cls, (None, hidden))
        made.name = "pair"
        return made

    name: str


class Listed(list):  # type: ignore[type-arg]
    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__([hidden])


@dataclass
class Fields:
    hidden: torch.Tensor


class Returns(nn.Module):
    """A block that returns an object of ``kind``."""

    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(x + self.down(self.up(x).relu()))
        return self.kind(y if self.kind is Fields else y + 1)


def what_modules_return() -> None:
    """Tokens are gathered in what a module returns, which keeps its class; a module's tensor is
    gathered where the model returns it in an object that no hook can change."""
    kinds: list[Callable[[torch.Tensor], Any]] = [
        Named, Pair, Listed, Fields, lambda y: {"hidden": y}, lambda y: (y, None),
        lambda y: transformers.utils.ModelOutput(hidden=y), lambda y: [(None, {"hidden": y})],
        lambda y: torch.return_types.max((y, 0)), lambda y: MappingProxyType({"hidden": y}),
    ]  # fmt: skip
    for kind in kinds:
        whole = Returns(kind).double()
        split, x = copy.deepcopy(whole), torch.randn(2, 4, 8, dtype=torch.float64)
        parallelize(split, _meshes()[2], inputs=x, sequence_parallel=True)
        expected, found = whole(x), split(x)
        assert type(found) is type(expected)
        assert getattr(found, "name", None) == getattr(expected, "name", None)
        if kind is Fields:
            expected, found = vars(expected), vars(found)
        torch.testing.assert_close([*tensors_in(found)], [*tensors_in(expected)])


def layers_that_are_not_split() -> None:
    """Tokens are gathered for an attention in between, which is given one tensor three times."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    whole = nn.TransformerEncoder(layer, 2).double()
    split, x = copy.deepcopy(whole), torch.randn(2, 6, 8, dtype=torch.float64)
    found = parallelize(split, _meshes()[2], inputs=(x,), sequence_parallel=True).found.between
    assert ("layers.1.self_attn", (0, 1, 2)) in [(b.path, b.arguments) for b in found.borders]
    runs = []
    for model in (split, whole):
        loss = model(x).sin().sum()
        loss.backward()
        gradients = whole_tensors(model, {n: p.grad for n, p in model.named_parameters()})
        runs.append({"loss": loss, **gradients})
    torch.testing.assert_close(*runs)


def the_loss_without_logits() -> None:
    """Training sums what ranks know of their classes, and nobody gathers logits."""
    whole, tokens = _made("Llama").train(), _tokens(16)
    split = copy.deepcopy(whole)
    tfk.fuse(split, measure=False, skip_logits=True)
    _split(split, _meshes()[2])
    _check(whole, split, 16)
    with Traffic() as traffic:
        assert not split(tokens, labels=tokens).logits
    assert "all_gather_into_tensor" not in traffic.calls
    expected = whole(tokens).logits
    torch.testing.assert_close(split(tokens).logits, expected)
    split.lm_head.register_forward_hook(lambda *call: call[-1] * 2)
    with pytest.warns(RuntimeWarning, match="the head is no longer as it was"):
        torch.testing.assert_close(split(tokens, labels=tokens).logits, 2 * expected)


def scores_of_positions() -> None:
    """Attentions share a table of positions, of which each rank has the columns of its heads, and
    mask what it says by an argument; the stacks of layers have other numbers of tokens."""
    whole = _made("T5")
    split = copy.deepcopy(whole)
    found = _split(split, _meshes()[2])
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    assert len([group for group in found.found.groups if group.tables == (table,)]) == 2
    assert split.get_submodule(table).weight.to_local().shape == (8, 2)
    assert "relative_attention_bias" in str(found)
    given = {"input_ids": _tokens(9), "labels": _tokens(6), "attention_mask": torch.ones(2, 9)}
    given["attention_mask"][0, 5:] = 0
    runs = []
    for model in (split, whole):
        loss = model(**given).loss
        loss.backward()
        gradients = whole_tensors(model, {n: p.grad for n, p in model.named_parameters()})
        runs.append({"loss": loss, **gradients})
    torch.testing.assert_close(*runs)


def four_ranks() -> None:
    for name in ("ours, tied", "Llama"):
        whole = _made(name)
        split = copy.deepcopy(whole)
        _split(split, _meshes()[4])
        _check(whole, split)


def its_own_plan_and_a_given_one() -> None:
    """The given one leaves attentions whole, so that tokens are gathered for them."""
    plans: list[Any] = [
        "model",
        {f"model.layers.*.mlp.{n}_proj": s for n, s in
         (("gate", "colwise"), ("up", "colwise"), ("down", "rowwise"))},
    ]  # fmt: skip
    for plan in plans:
        whole = _made("Llama")
        split = copy.deepcopy(whole)
        found = _split(split, _meshes()[2], plan, sequence_parallel=plan != "model")
        assert ("q_proj" in str(found)) == (plan == "model")
        _check(whole, split, 16)


def the_first_ranks_parameters() -> None:
    """The parameters that other ranks had before do not matter."""
    whole = _made("ours")
    split = copy.deepcopy(whole)
    if dist.get_rank() % 2:
        with torch.no_grad():
            for parameter in split.parameters():
                parameter.fill_(0.5)
    _split(split, _meshes()[2])
    _check(whole, split)


def frozen_parameters_stay_frozen() -> None:
    model = _made("GPT-2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attn." not in name)
    _split(model, _meshes()[2])
    _loss(model, _tokens()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (".attn." in name), name


class Scaled(nn.Module):
    """A block that has a parameter of its own beside the layers of a group."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.scale * self.down(nn.functional.gelu(self.up(x)))
        return y


def parameters_of_a_block_beside_its_group() -> None:
    """Each rank has all of their gradient, which nothing sums."""
    torch.manual_seed(0)
    whole = Scaled().double()
    split = copy.deepcopy(whole)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    parallelize(split, _meshes()[2], inputs=x)
    for model in (whole, split):
        model(x).square().sum().backward()
    found = whole_tensors(split, {name: p.grad for name, p in split.named_parameters()})
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def masks_of_dropout() -> None:
    """All ranks drop the same of what all have, and by masks of their own what is split."""
    model = _ours(dropout=0.5)
    _split(model, _meshes()[2])
    seen: list[torch.Tensor] = []
    layer: Any = model.transformer.layers[0]  # type: ignore[union-attr,index]
    layer.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    layer.norm_2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.train()
    tokens = _tokens()
    losses = [model(tokens, tokens) for _ in range(2)]
    assert losses[0] != losses[1]
    group = _meshes()[2].get_group()
    fork = Fork(_meshes()[2], device())  # as Columns and Rows use it
    fork.begin()
    assert not torch.equal(*_gathered(torch.rand(3), group))
    fork.end()
    for loss in losses:
        assert torch.equal(*_gathered(loss.detach(), group))
    assert torch.equal(*_gathered(seen[1].detach(), group))
    failing = layer.out.register_forward_pre_hook(_fail, prepend=True)
    with pytest.raises(RuntimeError, match="between the layers of a group"):
        model(tokens, tokens)
    failing.remove()
    drawn = [torch.rand(3) for _ in range(2)]
    assert torch.equal(*_gathered(torch.stack(drawn), group))
    assert not torch.equal(drawn[0], drawn[1])


def _fail(*_: Any) -> None:
    raise RuntimeError("between the layers of a group")


def masks_between_groups() -> None:
    """Ranks drop tokens that only they have by masks of their own."""
    sizes = [nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.5), nn.LayerNorm(8)]
    model, group = nn.Sequential(*sizes), _meshes()[2].get_group()
    parallelize(model, _meshes()[2], inputs=torch.randn(2, 4, 8), sequence_parallel=True)
    masks: list[torch.Tensor] = []
    model[3].register_forward_hook(lambda *call: masks.append(call[-1] == 0))
    x = torch.randn(2, 64, 8)
    for trains in (True, False, True):
        assert torch.equal(*_gathered(model.train(trains)(x).detach(), group))
    assert not masks[1].any()
    for mask in (masks[0], masks[2]):
        assert mask.shape == (2, 32, 8)
        assert not torch.equal(*_gathered(mask.byte(), group))
    assert not torch.equal(masks[0], masks[2])
    assert torch.equal(*_gathered(torch.rand(3), group))


def _gathered(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def bytes_of_a_forward_pass() -> None:
    """One sum for each group and the embedding, and the logits; two ranks send half of a gathered
    tensor, and all of one that they sum."""
    model = _made("ours")
    _split(model, _meshes()[2])
    tokens = _tokens()
    with torch.no_grad(), Traffic() as traffic:
        logits = model(tokens)
    sums = 2 * model.config.num_layers + 1
    assert traffic.calls == {"all_reduce": sums, "all_gather_into_tensor": 1}
    numbers = sums * tokens.numel() * model.config.dim + logits.numel() // 2
    assert traffic.bytes == numbers * logits.element_size()


def bytes_between_groups() -> None:
    """Gathering tokens for a group and scattering its sums sends what a sum sends; the tokens are
    gathered once more behind the last group."""
    model, tokens = _made("ours"), _tokens(16)
    _split(model, _meshes()[2], sequence_parallel=True)
    with torch.no_grad(), Traffic() as traffic:
        logits = model(tokens)
    groups = 2 * model.config.num_layers
    gathered = {"all_gather_into_tensor": groups + 2, "reduce_scatter_tensor": groups}
    assert traffic.calls == {"all_reduce": 1, **gathered}
    size = tokens.numel() * model.config.dim
    numbers = (groups + 1) * size + size // 2 + logits.numel() // 2
    assert traffic.bytes == numbers * logits.element_size()


def bytes_of_a_group_with_a_hash_for_a_name() -> None:
    pair = [[0, 1], [2, 3]][dist.get_rank() // 2]
    group = dist.new_group(pair, use_local_synchronization=True)
    x = torch.ones(100)
    with Traffic() as traffic:
        all_reduce(x, "sum", group).sum()
        dist.all_reduce(x, group=group)
    assert traffic.bytes == 2 * x.nbytes


def a_checkpoint_of_four_ranks_in_two() -> None:
    """Weights and moments go through DCP between numbers of ranks, packed ones too."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    whole = _made("ours")
    states = []
    for ranks in (4, 2):
        model = copy.deepcopy(whole)
        _split(model, _meshes()[ranks])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        if ranks == 4:
            _loss(model, _tokens()).backward()
            optimizer.step()
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        if ranks == 4:
            dcp.save(state, checkpoint_id=folder[0])
        else:
            dcp.load(state, checkpoint_id=folder[0])
            set_state_dict(model, optimizer, model_state_dict=state["model"],
                           optim_state_dict=state["optimizer"])  # fmt: skip
        of_names = {name: optimizer.state[p] for name, p in model.named_parameters()}
        states.append([
            whole_state_dict(model),
            *(whole_tensors(model, {n: x[key] for n, x in of_names.items()})
              for key in ("exp_avg", "exp_avg_sq")),
        ])  # fmt: skip
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    for saved, loaded in zip(*states, strict=True):
        assert saved.keys() == loaded.keys()
        for name, tensor in saved.items():
            assert torch.equal(loaded[name], tensor), name
    assert not torch.equal(states[1][0]["head.weight"], whole.head.weight)


def text_from_a_cache() -> None:
    """Each rank caches the keys of its own heads."""
    tokens = _tokens()[:, :3]
    greedy = {"do_sample": False}
    for name, options in (("ours", {"temperature": 0.0}), ("Llama", greedy), ("T5", greedy)):
        whole = _made(name)
        split = copy.deepcopy(whole)
        _split(split, _meshes()[2])
        texts = [model.generate(tokens, max_new_tokens=3, **options) for model in (whole, split)]
        assert torch.equal(*texts), name


class Normed(nn.Embedding):
    """An embedding that does more than looking up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(super().forward(x), (self.embedding_dim,))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = Normed(WORDS, 8), nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.words(x))


def what_is_refused() -> None:
    mesh, both = _meshes()[2], _meshes()[0]
    model = _made("Llama")
    before = {name: (type(p), p.data_ptr()) for name, p in model.named_parameters()}
    row = {"model.layers.0.mlp.down_proj": "rowwise"}
    names = {"q": "colwise", "k": "colwise", "v": "colwise", "o": "rowwise"}
    attention = {f"encoder.block.0.layer.0.SelfAttention.{n}": style for n, style in names.items()}
    all_zero = torch.Generator().manual_seed(0)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: parallelize(model, both), "mesh has 2 dimensions, expected one"),
        (lambda: parallelize(model, 2), "mesh is 2, expected a DeviceMesh"),
        (lambda: parallelize(all_zero, mesh), "model is Generator, expected an nn.Module"),
        (lambda: parallelize(model, mesh, 3), "plan is 3, expected 'auto', 'model' or"),
        (lambda: parallelize(_made("BERT"), mesh, "model"), "has no tp_plan"),
        (lambda: parallelize(model, mesh, {"model.other": "colwise"}), "plan has 'model.other'"),
        (lambda: parallelize(model, mesh, {"lm_head": "up"}), "plan has 'up' for 'lm_head'"),
        (lambda: parallelize(model, mesh, row), "plan has None for 'model.layers.0.mlp.gate_proj'"),
        (lambda: parallelize(model, mesh, {"model.norm": "colwise"}), "'colwise' for 'model.norm'"),
        (lambda: parallelize(_made("T5"), mesh, attention), "plan has None for 'encoder.block.1."),
        (lambda: parallelize(Tied(), mesh, inputs=_tokens()), "head is split, expected words, wh"),
        (lambda: parallelize(_made("Qwen3"), _meshes()[4]), "k_proj has 2 heads, expected a mult"),
        (lambda: parallelize(nn.ReLU(), mesh, inputs=(torch.ones(1),)), "no layers that can be"),
        (lambda: parallelize(_made("ours, tied"), mesh, {"head": "colwise_gather_output"},
                             inputs=(_tokens(),)), "head is split, expected tokens"),
        (lambda: parallelize(model, mesh, sequence_parallel=1), "sequence_parallel is 1, expected"),
        (lambda: parallelize(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), mesh,
                             inputs=torch.ones(2, 4), sequence_parallel=True),
         "sequence_parallel is True, expected False (nothing between"),
    ]  # fmt: skip
    for call, words in calls:
        with pytest.raises((TypeError, ValueError), match=re.escape(words)):
            call()
    assert before == {name: (type(p), p.data_ptr()) for name, p in model.named_parameters()}
    _check_one_ranks_refusals(mesh)
    parallelize(model, mesh)
    with pytest.raises(ValueError, match="model is split, expected a whole one"):
        parallelize(model, mesh)
    model = _made("Llama")
    parallelize(model, mesh, sequence_parallel=True)
    with pytest.raises(ValueError, match="parallelize: a call has 17 tokens, expected a multiple"):
        model(_tokens())


def _check_one_ranks_refusals(mesh: Any) -> None:
    """A rank that cannot follow raises on the others as well."""
    odd = mesh.get_local_rank() == 1
    plan = {"lm_head": "up"} if odd else "auto"
    with pytest.raises(ValueError, match=r"plan has 'up'"):
        parallelize(_made("Llama"), mesh, plan)
    with pytest.raises(ValueError, match=r"model of rank [01] of the mesh is another one"):
        parallelize(_theirs("Llama", num_hidden_layers=1 + odd), mesh)
    torch.manual_seed(dist.get_rank())
    with pytest.raises(ValueError, match="random state"):
        parallelize(_theirs("BERT"), mesh)


FOUR = (
    four_ranks, bytes_of_a_group_with_a_hash_for_a_name, a_checkpoint_of_four_ranks_in_two,
    what_is_refused,
)  # fmt: skip
CASES = [
    every_model, tokens_are_split_between_groups, what_modules_return,
    layers_that_are_not_split, the_loss_without_logits, scores_of_positions, four_ranks,
    its_own_plan_and_a_given_one, the_first_ranks_parameters, frozen_parameters_stay_frozen,
    parameters_of_a_block_beside_its_group, masks_of_dropout, masks_between_groups,
    bytes_of_a_forward_pass, bytes_between_groups, bytes_of_a_group_with_a_hash_for_a_name,
    a_checkpoint_of_four_ranks_in_two, text_from_a_cache, what_is_refused,
]  # fmt: skip


PAIR = [case for case in CASES if case not in FOUR]


@pytest.mark.distributed
def test_ranks_together(together: Callable[..., None]) -> None:
    together(CASES, pair=PAIR)
