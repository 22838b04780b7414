# SPDX-License-Identifier: MIT
"""Splits a model between the ranks of a mesh: tensor parallelism, by PyTorch's own engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._errors import ArgumentTypeError, ArgumentValueError, as_flag, shown
from .._torch import is_a
from ..fuse.inputs import given
from ..fuse.patterns.skip_logits import Head as LateHead
from ..fuse.plan import Plan, put_in, take_out
from ..fuse.record import Trace, record
from ..fuse.site import Site
from ..measure.table import box
from ..models._parts import Switched
from .between import find_between
from .plan import Between, Found, Group, find, is_split_alike

if TYPE_CHECKING:  # they import torch.distributed.tensor, which takes long
    from .randomness import Fork
    from .styles import Entry

_PLAN = "_tfk_plan"  # of a fused model
_SPLIT = "_split_between_ranks"  # the attribute of a model that is split
_PLANS = ("auto", "model")
_COLUMNS, _ROWS, _HEAD = "colwise", "rowwise", "colwise_gather_output"
_STYLES = {
    _COLUMNS: _COLUMNS, _ROWS: _ROWS, "embedding_rowwise": _ROWS, _HEAD: _HEAD,
    "colwise_rep": _HEAD,
}  # fmt: skip
# Styles of Hugging Face's plans for what is found by the dataflow, and needs no entry.
_FOUND = ("replicated_with_grad_allreduce", "sequence_parallel")
_PACKED = re.compile(r"^(.*?)\.?parametrizations\.(\w+)\.original(\d*)$")


@dataclass(frozen=True)
class Split:
    """The parts of a model that :func:`parallelize` has split; ``str`` gives a table."""

    model: str
    ranks: int
    found: Found
    whole: int  # bytes of all parameters
    own: int  # of those that a rank holds

    def __str__(self) -> str:
        rows = []
        for group in self.found.groups:
            pieces = dict(group.pieces())
            layers = ", ".join(path.rsplit(".", 1)[-1] for path, _ in group.columns)
            each = max(pieces.values()) // self.ranks
            rows.append([f"{layers} > {group.row}", "columns > rows", f"{each} {group.kind}"])
        if self.found.between.rows:
            rows.append(["what is between them", "time", f"1 / {self.ranks} of tokens"])
        tables = {path: group.heads for group in self.found.groups for path in group.tables}
        rows += [[path, "columns", f"{n // self.ranks} heads"] for path, n in tables.items()]
        rows += [[path, "vocabulary", "tokens"] for path in self.found.embeddings]
        if self.found.head:
            rows.append([self.found.head, "vocabulary", "tokens"])
        share = f"{self.own / 2**20:.1f} of {self.whole / 2**20:.1f} MiB of parameters a rank"
        headings = (("Layers", 40), ("split by", 14), ("each rank", 12))
        return box(f"{self.model.upper()} ON {self.ranks} RANKS", share, headings, rows)


def parallelize(
    model: nn.Module,
    mesh: Any,
    plan: str | Mapping[str, str] = "auto",
    *,
    inputs: Any = None,
    sequence_parallel: bool = False,
) -> Split:
    """Splits a model in place between the ranks of a mesh (tensor parallelism).

    The model runs once on each rank, and its dataflow says what can be split: projections of
    attentions by heads and layers of MLPs by channels, of each group the last one by rows, and the
    head and the embedding of its size by vocabulary. Embeddings that give heads their scores of
    relative positions are split with them. Each group costs one sum over the ranks in the forward
    pass and one in the backward pass. Parameters that are split become DTensors, with which
    PyTorch's optimizers, checkpoints (DCP) and FSDP2 work; the others are those of the mesh's first
    rank. Between the groups activations are plain tensors, whole on every rank unless
    ``sequence_parallel`` splits them.

    A model may be fused before (:func:`transformer_kernels.fuse`); what contains a split layer is
    served by PyTorch then. A head that is fused without logits stays so: the loss of training takes
    the parts of the ranks. Where layers drop elements, ranks must have the same seed
    (``torch.manual_seed``): what all of them have is dropped alike; heads, channels
    and tokens that are split are not.

    >>> dist = torch.distributed  # torchrun starts the processes, and says which is which
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.LayerNorm(8))
    >>> split = tfk.parallel.parallelize(model, mesh, inputs=torch.randn(2, 8))
    >>> model[0].weight.placements
    (Shard(dim=0),)
    >>> [*tfk.parallel.whole_state_dict(model)][:2]
    ['0.weight', '0.bias']
    >>> dist.destroy_process_group()

    Args:
        model: a model of :mod:`transformer_kernels.models`, Hugging Face or your own, whole and
            alike on every rank.
        mesh: a DeviceMesh of one dimension, or a slice of one: ``mesh["tp"]``.
        plan: ``"auto"`` splits what is found; ``"model"`` what the model's own ``tp_plan`` names.
            Or styles by path, as Hugging Face has them, in which ``*`` stands for any name:
            ``"colwise"``, ``"rowwise"``, ``"colwise_gather_output"`` for the head, and
            ``"embedding_rowwise"`` for the embedding.
        inputs: arguments of a call, as for :func:`transformer_kernels.fuse`.
        sequence_parallel: also split what is between the groups, norms, sums and dropouts, over the
            tokens (Korthikanti et al. 2022, arXiv:2205.05198): activations (B, T, C) are
            (B, T / N, C) there. Tokens are gathered where a group begins, and each rank gets the
            sums of its own where one ends, which together sends as many bytes as one sum. The
            gradients of parameters in between are summed over the ranks. T is a multiple of N.

    Returns:
        What was split.

    Raises:
        ArgumentValueError, ArgumentTypeError: on every rank, before anything is changed, where an
            argument does not fit on any.
    """
    ranks = _check_mesh(model, mesh)
    error: Exception | None = None
    found = Found((), None, ())
    try:
        by_tokens = as_flag("parallelize", "sequence_parallel", sequence_parallel)
        found = _planned(model, ranks, plan, inputs, by_tokens)
    except Exception as failed:  # the others must not wait for a rank that cannot follow
        error = failed
    _agree(model, mesh, found, error)
    return _carry_out(model, mesh, found)


def whole_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model that :func:`parallelize` has split, with the names and the whole tensors
    of one that is not. All ranks call it.

    Args:
        model: the model; one that is not split gives its ``state_dict``.

    >>> model = torch.nn.Linear(2, 3)
    >>> [*tfk.parallel.whole_state_dict(model)]
    ['weight', 'bias']
    """
    return whole_tensors(model, model.state_dict())


def whole_tensors(model: nn.Module, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by names of the split model's parameters as those of a model that is not split."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in named.items():
        full = _whole(tensor)
        packed = _PACKED.match(name)
        if packed is not None:
            name = ".".join(filter(None, packed.groups()[:2]))
        parts.setdefault(name, []).append(full)
    dims = _packed_dims(model)
    return {
        name: found[0] if len(found) == 1 else torch.cat(found, dims[name])
        for name, found in parts.items()
    }


def _packed_dims(model: nn.Module) -> dict[str, int]:
    from .styles import Packed

    return {
        f"{path.removesuffix('.parametrizations.' + name)}.{name}".lstrip("."): by.dim
        for path, module in model.named_modules()
        if isinstance(module, nn.utils.parametrize.ParametrizationList)
        for name in [path.rsplit(".", 1)[-1]]
        for by in module
        if isinstance(by, Packed)
    }


def _whole(x: Any) -> Any:
    return x.full_tensor() if _is_dtensor(x) else x


def _is_dtensor(x: Any) -> bool:
    return is_a(x, "torch.distributed.tensor", "DTensor")


# ---- checks -------------------------------------------------------------------------------------


def _check_mesh(model: Any, mesh: Any) -> int:
    """The ranks of the mesh. What is refused here is refused on every rank."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"parallelize: model is {type(model).__name__}, expected an nn.Module"
        )
    if not is_a(mesh, "torch.distributed.device_mesh", "DeviceMesh"):
        raise ArgumentTypeError(f"parallelize: mesh is {shown(mesh)}, expected a DeviceMesh")
    if mesh.ndim != 1:
        raise ArgumentValueError(
            f"parallelize: mesh has {mesh.ndim} dimensions, expected one (mesh['name'] gives it)"
        )
    if mesh.get_coordinate() is None:
        raise ArgumentValueError("parallelize: mesh is one without this process, expected one with")
    ranks: int = mesh.size()
    return ranks


def _planned(
    model: nn.Module, ranks: int, plan: str | Mapping[str, str], inputs: Any, by_tokens: bool
) -> Found:
    if _SPLIT in model.__dict__ or any(map(_is_dtensor, model.parameters())):
        raise ArgumentValueError("parallelize: model is split, expected a whole one")
    styles = _styles(model, plan)
    with _stock(model):
        made = given(model, inputs)
        trace = record(model, made.args, made.kwargs)
        found = find(model, trace)
    if styles is not None:
        found = _chosen(found, styles)
    if not found.groups and found.head is None:
        raise ArgumentValueError(
            "parallelize: model has no layers that can be split, expected linear layers whose"
            " results meet in one other (layers with hooks of others, or adapters, are none)"
        )
    _check_ties(model, found)
    for group in found.groups:
        for path, count in group.pieces():
            if count % ranks:
                raise ArgumentValueError(
                    f"parallelize: {path} has {count} {group.kind}, expected a multiple of the"
                    f" mesh's {ranks} ranks"
                )
    return _with_tokens(model, trace, found) if by_tokens else found


def _with_tokens(model: nn.Module, trace: Trace, found: Found) -> Found:
    between = find_between(model, trace, found.groups)
    if not between.rows:
        raise ArgumentValueError(
            f"parallelize: sequence_parallel is True, expected False ({_why_whole(found, between)})"
        )
    return replace(found, between=between)


def _why_whole(found: Found, between: Between) -> str:
    if not found.groups:
        return (
            "only the vocabulary of the model can be split, and no layers between which tokens are"
        )
    if between.obstacle:
        return (
            f"nothing between the model's layers can be split over the tokens: {between.obstacle}"
            " reads all of them; in a module of its own it gets them gathered"
        )
    return (
        "nothing between the model's layers can be split over the tokens, where modules begin and"
        " end"
    )


def _check_ties(model: nn.Module, found: Found) -> None:
    """A weight that layers share is split for all of them."""
    paths = {*found.paths()}
    split = {p: path for path in paths for p in model.get_submodule(path)._parameters.values()}
    for path, module in model.named_modules():
        for parameter in module._parameters.values() if is_split_alike(module) else ():
            if parameter is not None and parameter in split and path not in paths:
                raise ArgumentValueError(
                    f"parallelize: {split[parameter]} is split, expected {path}, which has the same"
                    " weight, in the plan as well"
                )


def _styles(model: nn.Module, plan: Any) -> dict[str, str] | None:
    """The style of each path that a plan names; None for whatever is found."""
    if isinstance(plan, str) and plan in _PLANS:
        if plan == "auto":
            return None
        plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
        if not plan:
            raise ArgumentValueError(
                f"parallelize: plan is 'model', expected 'auto' ({type(model).__name__} has no"
                " tp_plan)"
            )
    if not isinstance(plan, Mapping):
        raise ArgumentTypeError(
            f"parallelize: plan is {shown(plan)}, expected 'auto', 'model' or styles by path"
        )
    paths = [path for path, _ in model.named_modules()]
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        if style in _FOUND:
            continue
        if style not in _STYLES:
            raise ArgumentValueError(
                f"parallelize: plan has {style!r} for {pattern!r}, expected {', '.join(_STYLES)}"
            )
        meant = [path for path in paths if _matches(path, pattern)]
        if not meant:
            raise ArgumentValueError(
                f"parallelize: plan has {pattern!r}, expected the path of a module of the model"
            )
        styles.update(dict.fromkeys(meant, _STYLES[style]))
    return styles


def _matches(path: str, pattern: str) -> bool:
    """Whether each name of the path is that of the pattern."""
    names, patterns = path.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _chosen(found: Found, styles: dict[str, str]) -> Found:
    """The groups that a plan names, each of them whole."""
    left = dict(styles)
    groups = []
    for group in found.groups:
        named = [path for path in group.paths if path in styles]
        for path in group.paths if named else []:
            expected = _ROWS if path == group.row else _COLUMNS
            if left.pop(path, None) != expected:
                raise ArgumentValueError(
                    f"parallelize: plan has {styles.get(path)!r} for {path!r}, expected"
                    f" {expected!r} (beside {named[0]!r})"
                )
        if named:
            groups.append(group)
    tables = {table for group in groups for table in group.tables}
    for group in found.groups:
        if group not in groups and not tables.isdisjoint(group.tables):
            raise ArgumentValueError(
                f"parallelize: plan has None for {group.row!r}, expected {_ROWS!r} (the heads of"
                f" {group.tables[0]!r}, which it reads, are split)"
            )
    head = found.head if left.get(found.head or "") == _HEAD else None
    left.pop(head or "", None)
    embeddings = tuple(path for path in found.embeddings if left.get(path) == _ROWS)
    for path in {*left} - {*embeddings}:
        raise ArgumentValueError(
            f"parallelize: plan has {left[path]!r} for {path!r}, expected layers whose results"
            " meet in one other, the head, or the embedding of its size"
        )
    return Found(tuple(groups), head, embeddings)


@contextmanager
def _stock(model: nn.Module) -> Iterator[None]:
    """Runs PyTorch's own code inside: the record names its operations."""
    plans = _fused(model)
    switched = [m for m in model.modules() if isinstance(m, Switched) and m.ours]
    take_out(model.modules())
    for module in switched:
        module.ours = False
    try:
        yield
    finally:
        for module in switched:
            module.ours = True
        for owner, plan in plans:
            put_in(plan.sites)
            owner.__dict__[_PLAN] = plan


def _agree(model: nn.Module, mesh: Any, found: Found, error: Exception | None) -> None:
    """Raises on every rank where one could not follow, or follows in another way."""
    from torch import distributed as dist

    from .randomness import generator_of, place_of

    device = next(iter(model.parameters()), torch.empty(0)).device
    facts: dict[str, Any] = {
        "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()],
        "plan": repr(found),
        "fused sites (tfk.fuse with measure=False chooses alike)": [
            (site.pattern, site.path, site.gate) for _, plan in _fused(model) for site in plan.sites
        ],
    }
    if error is None and _drops(model):
        facts["random state (torch.manual_seed)"] = place_of(generator_of(device))
    if error is None and device.type != mesh.device_type:
        error = ArgumentValueError(
            f"parallelize: mesh is of {mesh.device_type}, expected one of {device.type}, where the"
            " model is"
        )
    all_facts: list[Any] = [None] * mesh.size()
    words = None if error is None else f"{type(error).__name__}: {error}"
    dist.all_gather_object(all_facts, (words, facts), group=mesh.get_group())
    if error is not None:
        raise error
    for rank, (failure, others) in enumerate(all_facts):
        if failure is not None:
            raise ArgumentValueError(f"parallelize: rank {rank} of the mesh refuses: {failure}")
        for name, fact in facts.items():
            if others.get(name) != fact:
                raise ArgumentValueError(
                    f"parallelize: {name} of rank {rank} of the mesh is another one, expected the"
                    " same on every rank"
                )


def _drops(model: nn.Module) -> bool:
    """Whether any module drops elements in training."""
    modules = [*model.modules()]
    holders = [*modules, *(getattr(module, "config", None) for module in modules)]
    named = (pair for holder in holders if holder is not None for pair in vars(holder).items())
    return any("drop" in name and isinstance(p, float) and p > 0 for name, p in named) or any(
        isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in modules
    )


# ---- carrying out -------------------------------------------------------------------------------


def _carry_out(model: nn.Module, mesh: Any, found: Found) -> Split:
    from torch.distributed.tensor.parallel import parallelize_module

    from .borders import Crossing
    from .head import split_site
    from .randomness import Fork
    from .styles import Entry

    device = next(model.parameters()).device
    whole = _bytes(model)
    split = {model.get_submodule(path) for path in found.paths()}
    fused = _fused(model)
    for owner, plan in fused:
        plan.sites = [
            site
            for site in plan.sites
            if site.mixin is LateHead or not _contains(owner, site, split)
        ]
        take_out(owner.modules())
    _broadcast(model, mesh)
    memo: dict[nn.Parameter, nn.Parameter] = {}
    fork = Fork(mesh, device) if _drops(model) else None
    entries = [Entry() for _ in found.groups]
    borders = [Crossing(border, mesh, entries, fork) for border in found.between.borders]
    for border in borders:  # hooks of styles make DTensors of arguments, and results of these
        border.attach_before(model)
    parallelize_module(model, mesh, _styles_of(found, entries, fork, memo))
    for border in borders:
        border.attach_behind(model)
    if fork is not None:
        model.register_forward_hook(fork.end_of_pass, always_call=True)
    for owner, plan in fused:  # behind parametrizations, which give modules other classes
        plan.sites = [split_site(s) if s.module in split else s for s in plan.sites]
        put_in(plan.sites)
        owner.__dict__[_PLAN] = plan
    for module in model.modules():  # others may know a split parameter by a name of their own
        for name, parameter in module._parameters.items():
            if parameter in memo:
                module.register_parameter(name, memo[parameter])
    for group in found.groups:
        _divide(model, group, mesh.size())
    result = Split(type(model).__name__, mesh.size(), found, whole, _bytes(model))
    model.__dict__[_SPLIT] = result
    return result


def _fused(model: nn.Module) -> list[tuple[nn.Module, Plan]]:
    """The modules that were fused as a whole, and their plans."""
    return [(m, m.__dict__[_PLAN]) for m in model.modules() if _PLAN in m.__dict__]


def _contains(owner: nn.Module, site: Site, split: set[nn.Module]) -> bool:
    """Whether a fused site is, or leaves out, a module that is split."""
    covered = (owner.get_submodule(path) for path in site.covers)
    return any(module in split for module in (site.module, *site.partners, *covered))


def _broadcast(model: nn.Module, mesh: Any) -> None:
    """Gives every rank the first one's parameters and buffers."""
    from torch import distributed as dist

    for tensor in (*model.parameters(), *model.buffers()):
        sent = tensor.detach().contiguous()
        dist.broadcast(sent, group=mesh.get_group(), group_src=0)
        if sent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(sent)


def _styles_of(
    found: Found, entries: Sequence[Entry], fork: Fork | None,
    memo: dict[nn.Parameter, nn.Parameter],
) -> dict[str, Any]:  # fmt: skip
    """PyTorch's styles by path. ``memo`` gets the split parameters by the whole ones."""
    from .styles import Columns, Head, Rows, Shared, Table, Vocabulary

    styles: dict[str, Any] = {}
    inside = (pair for group in found.groups for pair in group.inside)
    shared: dict[str, list[str]] = {}
    for path, name in (*inside, *found.between.parameters):
        shared.setdefault(path, []).append(name)
    styles.update({path: Shared(names) for path, names in shared.items()})
    for index, (group, entry) in enumerate(zip(found.groups, entries, strict=True)):
        for path, sizes in group.columns:
            begins = index not in found.between.forked and path == group.columns[0][0]
            styles[path] = Columns(memo, sizes, entry, fork if begins else None)
        scatters = group.row in found.between.rows
        styles[group.row] = Rows(memo, entry, None if scatters else fork, scatters)
        styles.update({path: Table(memo) for path in group.tables})
    styles.update({path: Vocabulary(memo) for path in found.embeddings})
    if found.head is not None:
        styles[found.head] = Head(memo)
    return styles


def _divide(model: nn.Module, group: Group, ranks: int) -> None:
    """Sets what modules know of the heads and channels that they have."""
    for path, name in group.counts:
        module = model.get_submodule(path)
        value = getattr(module, name)
        own = tuple(n // ranks for n in value) if isinstance(value, tuple) else value // ranks
        setattr(module, name, own)


def _bytes(model: nn.Module) -> int:
    """The bytes of parameters that this rank holds."""
    parameters: Iterator[Any] = model.parameters()
    own = (p.to_local() if _is_dtensor(p) else p for p in parameters)
    return sum(x.numel() * x.element_size() for x in own)
