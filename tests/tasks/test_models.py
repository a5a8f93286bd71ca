"""Networks: published sizes, images they fit, and weights that a seed alone decides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bluegrad.tasks import models


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_published_networks_have_their_parameters():
    assert count(models.cifar_cnn()) == 550_570
    assert count(models.digits_cnn()) == 26_010


def test_the_cifar_network_follows_its_table():
    kinds = [type(layer).__name__ for layer in models.cifar_cnn()]
    assert kinds == ["Conv2d", "Tanh", "Conv2d", "Tanh", "MaxPool2d"] * 3 + ["Flatten", "Linear", "Tanh", "Linear"]
    convolutions = [layer for layer in models.cifar_cnn() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 32, 64, 64, 128, 128]
    assert {(layer.kernel_size, layer.stride, layer.padding) for layer in convolutions} == {((3, 3), (1, 1), (1, 1))}


@pytest.mark.parametrize(
    ("size", "channels"), [((28, 28), 1), ((32, 32), 3), ((28, 28), 3), ((32, 32), 1), ((17, 40), 1), ((8, 8), 3)]
)
def test_networks_fit_their_images(size, channels):
    model = models.for_images(*size, channels, 7, seed=3)
    assert model(torch.zeros(2, channels, *size)).shape == (2, 7)
    reference = models.digits_cnn(7, channels) if size == (28, 28) else models.cifar_cnn(7, channels, *size)
    assert count(model) == count(reference)


def test_no_layer_mixes_examples():
    model = models.for_images(16, 16, 3, 4)
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model(x)[1], model(x[1:2])[0], atol=1e-6)


def test_initial_weights_come_from_the_seed_alone(monkeypatch):
    def reseeded(*_: object) -> None:
        raise AssertionError("the generators of the accelerators were reseeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded)
    monkeypatch.setattr(torch.cuda, "manual_seed", reseeded)
    monkeypatch.setattr(torch, "manual_seed", reseeded)
    torch.default_generator.manual_seed(5)
    before = torch.random.get_rng_state()
    one = models.for_images(8, 8, 1, 2, seed=1)
    assert (torch.random.get_rng_state() == before).all()
    torch.default_generator.manual_seed(6)
    two, three = models.for_images(8, 8, 1, 2, seed=1), models.for_images(8, 8, 1, 2, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one[0].weight, three[0].weight)


def test_a_default_device_does_not_change_them():
    with torch.device("meta"):
        elsewhere = models.for_images(28, 28, 1, 10, seed=1)
    here = models.for_images(28, 28, 1, 10, seed=1)
    assert torch.equal(elsewhere[0].weight, here[0].weight)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((7, 8, 1, 2), "height=7"), ((8, 7, 1, 2), "width=7"), ((8, 8, 0, 2), "channels=0"), ((8, 8, 1, 1), "classes=1")],
)
def test_images_that_fit_no_network_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        models.for_images(*arguments)
    with pytest.raises(ValueError, match="seed=-1"):
        models.for_images(8, 8, 1, 2, seed=-1)
