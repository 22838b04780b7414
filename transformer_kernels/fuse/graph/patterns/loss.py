# SPDX-License-Identifier: MIT
"""Cross entropy of logits, without the copy in float32 that models make of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from .... import functional
from .. import calls
from ..nodes import CASTS, VIEWS, behind, bound, call, example, is_tensor, shape_of
from ..region import Candidate
from ._pattern import Pattern, Place

_FUNCTION = "functional.cross_entropy"
_ROWS = 64  # of the logits of a proof
_OPTIONS = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


class LossPattern(Pattern):
    name = "loss"
    anchors = frozenset(("cross_entropy",))

    def candidates(self, place: Place) -> Iterator[Candidate]:
        node = place.node
        given = bound(node)
        logits, labels = given["input"], given["target"]
        if not is_tensor(logits) or not is_tensor(labels) or example(logits).dim() != 2:
            return
        narrow = behind(logits, CASTS | VIEWS)
        is_narrow = is_tensor(narrow) and example(narrow).dtype is not example(logits).dtype
        if is_narrow and shape_of(narrow)[-1] == shape_of(logits)[-1]:
            yield self._candidate(node, narrow, labels, calls.loss_in_float32)
        yield self._candidate(node, logits, labels, functional.cross_entropy)

    def _candidate(self, node: Node, logits: Node, labels: Node, function: Any) -> Candidate:
        options = {k: v for k, v in bound(node).items() if k in _OPTIONS and v is not None}
        flat = example(logits).dim() == 2
        classes, count = shape_of(logits)[-1], shape_of(labels)[0]

        def emit(graph: Graph) -> list[Node]:
            x = logits if flat else graph.call_method("flatten", (logits, 0, -2))
            return [call(graph, function, x, labels, **options)]

        rows = min(_ROWS, count) if flat else count

        def draw_labels() -> torch.Tensor:
            like = example(labels)
            drawn = torch.randint(classes, (rows,), device=like.device).to(like.dtype)
            drawn[: rows // 8] = options.get("ignore_index", -100)
            return drawn

        def draw_logits() -> torch.Tensor:
            like = example(logits)
            shape = (rows, classes) if flat else shape_of(logits)
            return torch.randn(shape, device=like.device).to(like.dtype)

        inputs = [logits, labels]
        if isinstance(options.get("weight"), Node):
            inputs.append(options["weight"])
        draws = {logits: draw_logits, labels: draw_labels}
        return Candidate(self.name, _FUNCTION, (node,), tuple(inputs), emit, draws)
