"""What is audited: the noise stream with the sampler, or whole training runs; with and without the canary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bluegrad import _checks
from bluegrad.audit._canary import Array, Canary, Draw, draw
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.noise.stream import NoiseStream
from bluegrad.participation import Participation
from bluegrad.sampling import batch_stream
from bluegrad.training import PrivacyEngine

# Numbers (steps times repetitions) that one replay holds at once.
_HELD = 1 << 22
# Canaries of one training run: as many coordinates of the model.
_CANARIES = 400
# Gradient norm of a canary in units of the clip norm: what isn't clipped is seen.
_LOUD = 10.0


class Subject(ABC):
    """Something that releases what a mechanism describes.

    Args:
        mechanism: what it is made with; the claim's own, unless a mistake is planted.
    """

    mechanism: Mechanism
    name: str
    repetitions: int  # by default

    @property
    def sampling(self) -> Participation:
        """The law by which batches are drawn."""
        return self.mechanism.participation

    @abstractmethod
    def releases(self, canary: Canary, count: int) -> tuple[Array, Array]:
        """Released sequences without and with the canary, each of shape (steps, some number up to about `count`).

        In units of the clip norm; columns are independent repetitions.
        """


@dataclass(frozen=True)
class Replay(Subject):
    """The real noise stream and the real sampler, with fresh keys, around a canary's gradients.

    Args:
        mechanism: what stream and sampler are made with.
        drawn: law by which batches are drawn; the mechanism's by default.
        stream: class of the noise stream.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> Replay(Mechanism(identity(4), FixedEpochs(4, 2), 1.0)).sampling
        FixedEpochs(steps=4, epochs=2)
    """

    mechanism: Mechanism
    drawn: Participation | None = None
    stream: Callable[..., NoiseStream] = NoiseStream
    name = "replay"
    repetitions = 200_000

    @property
    def sampling(self) -> Participation:
        """The law by which batches are drawn."""
        return self.mechanism.participation if self.drawn is None else self.drawn

    def releases(self, canary: Canary, count: int) -> tuple[Array, Array]:
        """G + N Z of every step, a repetition each element."""
        part = draw(self.sampling, canary, max(2, min(count, _HELD // self.mechanism.steps)))
        present = self._noise(len(part.chosen)) + canary.signs[:, None] * part.joined
        return self._noise(len(part.chosen)), present

    def _noise(self, count: int) -> Array:
        # two leaves: that no two of them share noise is part of the claim
        like = [torch.zeros(count // 2), torch.zeros(count - count // 2)]
        stream = self.stream(self.mechanism, like, clip_norm=1.0, key=NoiseKey.generate())
        steps = (torch.cat(stream.next()).numpy() for _ in range(self.mechanism.steps))
        return np.array(list(steps), dtype=np.float64)


@dataclass(frozen=True)
class Training(Subject):
    """Tiny models trained from end to end through `PrivacyEngine`, seen through their weights after every step.

    A model is one linear layer with a coordinate for every canary of the run; the loss is the output, with the sign
    of the step. Without canaries their inputs are zero: neighbours as in the guarantee.

    Args:
        mechanism: what the engine is given.
        grad_sample_mode: "hooks", "functorch" or "ghost".
        clip_norm: clip norm of the runs; canaries' gradients are ten times as long.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> Training(Mechanism(identity(4), FixedEpochs(4, 2), 1.0)).grad_sample_mode
        'hooks'
    """

    mechanism: Mechanism
    grad_sample_mode: str = "hooks"
    clip_norm: float = 0.5
    name = "training"
    repetitions = 4000

    def __post_init__(self) -> None:
        _checks.choice("grad_sample_mode", self.grad_sample_mode, ("hooks", "functorch", "ghost"))
        _checks.real("clip_norm", self.clip_norm, low=0.0, low_open=True, fix="give a norm such as 1")

    def releases(self, canary: Canary, count: int) -> tuple[Array, Array]:
        """The weights' changes of two runs of fresh keys, scaled back to sums of clipped gradients and noise."""
        part = draw(self.sampling, canary, max(2, min(count, _CANARIES)))
        inputs = torch.zeros(part.examples, len(part.chosen))
        absent = self.train(inputs, part, canary)
        inputs[torch.from_numpy(part.chosen), torch.arange(len(part.chosen))] = _LOUD * self.clip_norm
        return absent, self.train(inputs, part, canary)

    def train(self, inputs: torch.Tensor, part: Draw, canary: Canary) -> Array:
        """One private run; what each step has released, shape (steps, canaries), in units of the clip norm."""
        model = nn.Linear(inputs.shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        criterion: Any = _Output()
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        wrapped, optimizer, *criteria, loader = self.make_private(model, sgd, criterion, inputs, part)
        criterion = criteria[0] if criteria else criterion
        trail = [model.weight.detach().clone()]
        while len(trail) <= self.mechanism.steps:
            for x, y in loader:
                criterion(wrapped(x.requires_grad_()), y * float(canary.signs[len(trail) - 1])).backward()
                optimizer.step()
                optimizer.zero_grad()
                trail.append(model.weight.detach().clone())
        changes = torch.cat(trail).double().diff(dim=0).numpy()
        return -changes * optimizer.expected_batch_size / self.clip_norm

    def make_private(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, criterion: nn.Module, inputs: torch.Tensor, part: Draw
    ) -> tuple[Any, ...]:
        """The run, made private by the engine."""
        data = TensorDataset(inputs, torch.ones(len(inputs)))
        batch = batch_stream(self.sampling, len(inputs), part.key).expected_batch_size
        return PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=max(1, round(batch))),
            mechanism=self.mechanism,
            max_grad_norm=self.clip_norm,
            criterion=criterion if self.grad_sample_mode == "ghost" else None,
            grad_sample_mode=self.grad_sample_mode,
            sampling_key=part.key,
        )


class _Output(nn.Module):
    """The output itself as the loss, times the target; an empty batch has loss 0."""

    reduction = "mean"

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One loss an example, or their mean."""
        loss = output.squeeze(1) * target
        return loss if self.reduction == "none" else loss.sum() / max(1, len(loss))
