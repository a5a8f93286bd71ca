"""Convolutional networks of the literature's private-training experiments; tanh, and no layer mixes examples."""

from __future__ import annotations

import torch
from torch import nn

from bluegrad import _checks


def for_images(height: int, width: int, channels: int, classes: int, *, seed: int = 0) -> nn.Module:
    """The network for images of a size: the digits' for 28 x 28, the CIFAR-10 one otherwise.

    Args:
        height: pixels, at least 8.
        width: pixels, at least 8.
        channels: 1 (grey) or 3 (colour).
        classes: number of classes, at least 2.
        seed: of the initial weights, at least 0; the global generators are left as they were.

    Returns:
        A module from (batch, channels, height, width) to (batch, classes).

    Raises:
        ValueError: images too small, no channel, fewer than two classes, or a negative seed.
    """
    _checks.integer("seed", seed, minimum=0, fix="it sets the initial weights")
    # On the CPU with its own generator: torch.manual_seed would reseed those of the accelerators as well, which
    # fork_rng leaves alone here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if (height, width) == (28, 28):
            return digits_cnn(classes, channels)
        return cifar_cnn(classes, channels, height, width)


def cifar_cnn(classes: int = 10, channels: int = 3, height: int = 32, width: int = 32) -> nn.Module:
    """Three blocks of two 3 x 3 convolutions (32, 64, 128 channels) and 2 x 2 max-pool, dense 128, dense classes.

    550,570 parameters for ten classes of 32 x 32 colour images.

    Args:
        classes: number of classes, at least 2.
        channels: of the images.
        height: pixels, at least 8.
        width: pixels, at least 8.

    Returns:
        A module from (batch, channels, height, width) to (batch, classes).

    Raises:
        ValueError: images too small, no channel, or fewer than two classes.

    Source: Kairouz et al. 2021 (arXiv 2103.00039), table 2b.
    """
    _check(classes, channels)
    _checks.integer("height", height, minimum=8, fix="use larger images")
    _checks.integer("width", width, minimum=8, fix="use larger images")
    layers: list[nn.Module] = []
    before = channels
    for features in (32, 64, 128):
        layers += [nn.Conv2d(before, features, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(features, features, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        before = features
    flat = before * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), nn.Tanh(), nn.Linear(128, classes))


def digits_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """Two strided convolutions (16 of 8 x 8, 32 of 4 x 4) with max-pool, dense 32, dense classes; 28 x 28 images.

    26,010 parameters for ten classes of grey images.

    Args:
        classes: number of classes, at least 2.
        channels: of the images.

    Returns:
        A module from (batch, channels, 28, 28) to (batch, classes).

    Raises:
        ValueError: no channel, or fewer than two classes.

    Source: Papernot et al. 2021 (arXiv 2007.14191), table 1.
    """
    _check(classes, channels)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def _check(classes: int, channels: int) -> None:
    _checks.integer("classes", classes, minimum=2, fix="give data of at least two classes")
    _checks.integer("channels", channels, minimum=1, fix="1 for grey images, 3 for colour")
