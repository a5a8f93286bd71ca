"""Dense, slow twins of private training: a loop over examples, an explicit matrix N Z, and small models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bluegrad as bg
from bluegrad.noise import kernel

CLASSES, SIZE = 3, 24
KEY, SAMPLING_KEY = bg.NoiseKey(bytes(range(16))), bg.NoiseKey(bytes(range(16, 32)))
CLIP = 3.0  # of gradients of norm 1.4 to 6.2 at the start: some are clipped, some aren't

torch.set_num_threads(1)  # models are tiny: more threads only wait for each other, twentyfold on a busy machine


def small_model(seed: int = 0, *, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Convolution and linear layer, 177 parameters, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(48, CLASSES)
        )  # fmt: skip
    return model.to(dtype)


def examples(size: int = SIZE, seed: int = 1, dtype: torch.dtype = torch.float64) -> TensorDataset:
    """Random 1 x 6 x 6 images of very different brightness, with labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 1, 6, 6, generator=generator, dtype=torch.float64)
    x *= torch.linspace(0.05, 3.0, size, dtype=torch.float64).view(-1, 1, 1, 1)
    return TensorDataset(x.to(dtype), torch.randint(CLASSES, (size,), generator=generator))


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain gradient descent."""
    return torch.optim.SGD(parameters, lr=0.3)


@dataclass
class Run:
    """What make_private returned, whatever the mode."""

    engine: bg.PrivacyEngine
    module: Any
    optimizer: Any
    criterion: Any
    loader: Any
    schedule: Any = None
    losses: list[float] = field(default_factory=list)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Forward and backward of one physical batch."""
        loss = self.criterion(self.module(x), y)
        loss.backward()
        self.losses.append(float(loss.item()))

    def train(self, steps: int | None = None, loader: Any = None) -> Run:
        """Take steps until `steps` are taken in all; by default until the end."""
        goal = self.engine.mechanism.steps if steps is None else steps
        while self.optimizer.steps_taken < goal:
            for x, y in self.loader if loader is None else loader:
                self.backward(x, y)
                self.optimizer.step()
                self.optimizer.zero_grad()
                if not self.optimizer.accumulating and self.schedule is not None:
                    self.schedule.step()
                if self.optimizer.steps_taken == goal:
                    break
        return self

    def weights(self) -> torch.Tensor:
        """All parameters in one vector."""
        return flat(self.module.parameters())


def private_run(
    mechanism: Any,
    *,
    mode: str = "hooks",
    reduction: str = "mean",
    data: Dataset[Any] | None = None,
    batch_size: int | None = None,
    model: nn.Module | None = None,
    make: Callable[..., torch.optim.Optimizer] = sgd,
    clip: float = CLIP,
    key: Any = KEY,
    sampling_key: Any = SAMPLING_KEY,
    workers: int = 0,
    **options: Any,
) -> Run:
    """A private run of the small model."""
    data = examples() if data is None else data
    model = small_model() if model is None else model
    if batch_size is None:
        batch_size = expected_batch(mechanism, len(data))  # type: ignore[arg-type]
    engine = bg.PrivacyEngine()
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    parts = engine.make_private(
        module=model,
        optimizer=make(model.parameters()),
        data_loader=DataLoader(data, batch_size=batch_size, num_workers=workers),
        mechanism=mechanism,
        max_grad_norm=clip,
        criterion=criterion if mode == "ghost" else None,
        loss_reduction=reduction,
        grad_sample_mode=mode,
        key=key,
        sampling_key=sampling_key,
        **options,
    )
    if mode == "ghost":
        return Run(engine, *parts)
    module, optimizer, loader = parts
    return Run(engine, module, optimizer, criterion, loader)


def expected_batch(mechanism: Any, size: int) -> int:
    """Batch size whose loader has the mechanism's steps an epoch."""
    law = mechanism.participation
    share = law.rate if isinstance(law, bg.Poisson) else 1 / law.separation
    return round(size * share)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """One vector of all elements."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def dense_noise(mechanism: Any, shapes: list[tuple[int, ...]], *, clip: float, key: Any) -> list[np.ndarray]:
    """scale * N Z in float64, a matrix (steps, elements) for each leaf; Z comes from the kernel, one row a step."""
    scale, n = mechanism.noise_scale(clip), mechanism.strategy.noising()
    out = []
    for leaf, shape in enumerate(shapes):
        count = int(np.prod(shape, dtype=int))
        rows = [
            kernel.normals(key.secret, step=t, leaf=leaf, start=0, count=count) for t in range(mechanism.steps)
        ]  # fmt: skip
        out.append(scale * n @ np.array(rows, dtype=np.float64).reshape(mechanism.steps, count))
    return out


def clipped_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, clip: float) -> tuple[list[torch.Tensor], int]:
    """Sum over examples, one at a time, of min(1, clip / (norm + 1e-6)) times the gradient; how many were left out."""
    parameters = list(model.parameters())
    total, bad = [torch.zeros_like(p) for p in parameters], 0
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.autograd.grad(loss, parameters)
        norm = flat(gradient).norm()
        if not torch.isfinite(norm):
            bad += 1
            continue
        factor = min(1.0, clip / (float(norm) + 1e-6))
        total = [t + factor * g for t, g in zip(total, gradient)]
    return total, bad


@dataclass
class Twin:
    """Outcome of `dense_run`."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    trail: list[torch.Tensor]  # weights after every step
    left_out: int

    def weights(self) -> torch.Tensor:
        """All parameters in one vector."""
        return flat(self.model.parameters())


def dense_run(
    mechanism: Any,
    batches: list[np.ndarray],
    *,
    expected: float,
    reduction: str = "mean",
    data: TensorDataset | None = None,
    model: nn.Module | None = None,
    make: Callable[..., torch.optim.Optimizer] = sgd,
    clip: float = CLIP,
    key: Any = KEY,
    noise_factor: float = 1.0,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
) -> Twin:
    """The run written by hand: clipped sum + row t of scale N Z, over the expected batch size, into torch's optimizer.

    `clip` serves the clipping alone: `noise_factor` scales the noise of clip norm `CLIP`.
    """
    x, y = (examples() if data is None else data).tensors
    model = small_model() if model is None else model
    optimizer = make(model.parameters())
    plan = schedule(optimizer) if schedule else None
    noise = dense_noise(mechanism, [tuple(p.shape) for p in model.parameters()], clip=CLIP, key=key)
    trail, left_out = [], 0
    for t, batch in enumerate(batches):
        total, bad = clipped_sum(model, x[torch.as_tensor(batch)], y[torch.as_tensor(batch)], clip)
        left_out += bad
        for p, g, z in zip(model.parameters(), total, noise):
            release = g + noise_factor * torch.from_numpy(z[t]).view(p.shape).to(p.dtype)
            p.grad = release / expected if reduction == "mean" else release
        optimizer.step()
        if plan is not None:
            plan.step()
        trail.append(flat(model.parameters()))
    return Twin(model, optimizer, trail, left_out)


def fresh_noise(count: int) -> bytes:
    """Float32 noise of a stream with a fresh key; at module level, so that another process can call it."""
    mechanism = bg.Mechanism(bg.identity(1), bg.SinglePass(1), 1.0)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is the point
    stream = bg.NoiseStream(mechanism, [torch.zeros(count)], clip_norm=1.0, key=bg.NoiseKey.generate())
    return stream.next()[0].numpy().tobytes()
