# SPDX-License-Identifier: MIT
"""The vision transformer's own parts: patches, pooling and inputs."""

from __future__ import annotations

import pytest
import torch

from .conftest import VISION, vision_transformer

each_kernels = pytest.mark.parametrize("kernels", ["ours", "torch"])
SIZES = [((6, 15), (3, 5)), (8, 2), (4, (4, 1)), ((1, 7), (1, 7)), (3, 1)]


@each_kernels
@pytest.mark.parametrize(("image", "patch"), SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_projected_row_by_row(kernels, image, patch, channels):
    model = vision_transformer(
        kernels, image_size=image, patch_size=patch, channels=channels, pool="mean"
    )
    config, seen = model.config, []
    model.transformer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.randn(2, channels, *config.image)
    model(images)
    rows = seen[0] - model.positions
    assert rows.shape == (2, config.num_patches, config.dim)
    (height, width), weight = config.patch, model.patches.weight.flatten(1)
    across = config.image[1] // width
    for n in range(config.num_patches):
        top, left = n // across * height, n % across * width
        patch = images[:, :, top : top + height, left : left + width].flatten(1)
        wanted = patch @ weight.T + model.patches.bias
        torch.testing.assert_close(rows[:, n], wanted, rtol=1e-4, atol=1e-5)


@each_kernels
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_images_of_any_strides(kernels, pool):
    model = vision_transformer(kernels, pool=pool)
    images = torch.randn(2, 2, 6, 15)
    expected = model(images)
    for same in (images.to(memory_format=torch.channels_last), images.mT.contiguous().mT):
        torch.testing.assert_close(model(same), expected, rtol=1e-4, atol=1e-6)


def test_pools():
    by_token, by_mean = (vision_transformer(pool=pool) for pool in ("class", "mean"))
    assert by_token.positions.shape == (7, 24)
    assert by_token.class_token.shape == (24,)
    assert by_mean.positions.shape == (6, 24)
    assert by_mean.class_token is None
    images = torch.randn(2, 2, 6, 15)
    assert by_token.features(images).shape == by_mean.features(images).shape == (2, 24)


@each_kernels
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_it_learns_which_half_is_bright(kernels, pool):
    torch.manual_seed(0)
    model = vision_transformer(kernels, pool=pool, image_size=4, patch_size=2, channels=1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(40):
        labels = torch.randint(2, (32,))
        images = 0.3 * torch.randn(32, 1, 4, 4)
        images[labels == 1, :, :2] += 1
        images[labels == 0, :, 2:] += 1
        loss = model(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2


@each_kernels
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 6, 15), r"images has shape \(2, 6, 15\), expected \(batch, 2, 6, 15\)"),
        (torch.zeros(1, 2, 15, 6), r"images has shape \(1, 2, 15, 6\), expected"),
        (torch.zeros(1, 3, 6, 15), r"images has shape \(1, 3, 6, 15\), expected"),
        (torch.zeros(1, 2, 6, 15).double(), r"images is float64, expected float32 \(as the"),
        (torch.zeros(1, 2, 6, 15).byte(), "images is uint8, expected a floating-point dtype"),
        (torch.zeros(1, 2, 6, 15, device="meta"), "images is on meta, expected cpu"),
        ("image.png", "images is str, expected a Tensor"),
    ],
    ids=["rank", "sides", "channels", "dtype", "bytes", "device", "no tensor"],
)  # fmt: skip
def test_images_that_no_model_takes(kernels, images, message):
    with pytest.raises((ValueError, TypeError), match=f"^VisionTransformer: {message}"):
        vision_transformer(kernels)(images)


def test_targets_that_do_not_fit():
    images = torch.zeros(2, 2, 6, 15)
    with pytest.raises(ValueError, match=r"targets has shape \(3,\), expected \(2,\)"):
        vision_transformer()(images, torch.zeros(3).long())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_size": 8, "patch_size": 3},
            r"image_size is \(8, 8\), expected a multiple of patch_size \(3, 3\) in both sides",
        ),
        ({"image_size": (6, 14)}, r"image_size is \(6, 14\), expected a multiple"),
        ({"image_size": (6, 15, 1)}, r"image_size is \(6, 15, 1\), expected an int or \(height"),
        ({"patch_size": 0}, "patch_size is 0, expected at least 1"),
        ({"patch_size": "3"}, "patch_size is '3', expected an int"),
        ({"num_classes": 0}, "num_classes is 0, expected at least 1"),
        ({"channels": 0}, "channels is 0, expected at least 1"),
        ({"pool": "max"}, "pool is 'max', expected one of 'class', 'mean'"),
    ],
)
def test_what_no_vision_transformer_can_be(options, message):
    with pytest.raises((ValueError, TypeError), match=f"VisionTransformerConfig: {message}"):
        vision_transformer(**options)


def test_the_sizes_of_a_known_one():
    """ViT-Ti/16 on 224 x 224 pixels with 1000 classes has 5.7 million parameters."""
    options = {**VISION, "image_size": 224, "patch_size": 16, "channels": 3, "num_classes": 1000,
               "dim": 192, "num_layers": 12, "num_heads": 3}  # fmt: skip
    model = vision_transformer(**options)
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_717_416
