# SPDX-License-Identifier: MIT
"""Trains a vision transformer on scikit-learn's digits, with PyTorch and with our kernels.

The data are 1797 images of 8 x 8 pixels in scikit-learn (`pip install scikit-learn`). Every fifth
is held out.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from transformer_kernels.bench import models, training
from transformer_kernels.bench.options import pick_device
from transformer_kernels.models import VisionTransformer, VisionTransformerConfig

SIDE, CLASSES, LARGEST = 8, 10, 16
HELD_OUT = 5  # one image in so many

Labelled = tuple[Tensor, Tensor]


def digits() -> tuple[Labelled, Labelled]:
    """Images (N, 1, 8, 8) around 0 and their labels: those to train on, and those held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "train_vision_transformer: scikit-learn is missing, expected for its digits (pip"
            " install 'transformer-kernels[examples]')"
        ) from None
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) * (2 / LARGEST) - 1
    labels = torch.tensor(loaded.target, dtype=torch.long)
    held = torch.arange(len(labels)) % HELD_OUT == 0
    return (images[~held], labels[~held]), (images[held], labels[held])


def batches(known: Labelled, size: int, device: torch.device) -> Iterator[Labelled]:
    """Batches without end; each image comes once before any comes again."""
    generator = torch.Generator().manual_seed(1)
    images, labels = known
    while True:
        for rows in torch.randperm(len(labels), generator=generator).split(size):
            yield images[rows].to(device), labels[rows].to(device)


def loss_of(model: VisionTransformer, batch: Labelled) -> Tensor:
    return model(*batch)


def accuracy_of(model: VisionTransformer, held: Labelled, device: torch.device) -> float:
    images, labels = (x.to(device) for x in held)
    return float((model(images).argmax(-1) == labels).double().mean())


def task_of(pool: str, quick: bool, device: torch.device) -> models.Task:
    known, held = digits()
    dim, layers = (16, 2) if quick else (64, 4)
    config = VisionTransformerConfig(
        image_size=SIDE, patch_size=2, channels=1, num_classes=CLASSES, dim=dim,
        num_layers=layers, num_heads=4, pool=pool, dropout=0.1,
    )  # fmt: skip
    return models.Task(
        model=f"VisionTransformer, {layers} layers, width {dim}, {pool}",
        data="scikit-learn's digits",
        build=functools.partial(VisionTransformer, config),
        batches=functools.partial(batches, known, 64, device),
        loss_of=loss_of,
        accuracy_of=functools.partial(accuracy_of, held=held, device=device),
        recipe=training.Recipe(
            8 if quick else 700, learning_rate=4e-3, weight_decay=0.3, decays=True
        ),
        goal=None if quick else 0.97,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", choices=("mean", "class"), default="mean")
    models.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    task = task_of(parsed.pool, parsed.quick, device)
    trained = models.run(task, parsed.kernels, device, log=parsed.log)
    return models.finish(models.result_of([trained], device), parsed.json)


if __name__ == "__main__":
    sys.exit(main())
