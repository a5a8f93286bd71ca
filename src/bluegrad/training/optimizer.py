"""Opacus' optimizers with the noise of a `NoiseStream`: clip, sum, add row t of N Z, scale, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch.optim import Optimizer

from bluegrad import _checks
from bluegrad.noise.stream import NoiseStream
from bluegrad.sampling import BatchStream
from bluegrad.strategy.base import check_horizon
from bluegrad.training.ranks import Ranks
from bluegrad.training.state import load_wrapped

_STATE = "bluegrad"
_FORMAT = "bluegrad-optimizer-1"
_HALVES = (torch.float16, torch.bfloat16)


def _wide(p: torch.Tensor) -> torch.dtype:
    """What gradients of a parameter are clipped, summed and noised in."""
    return torch.float32 if p.dtype in _HALVES else p.dtype


class CorrelatedNoise(DPOptimizer):
    """What both optimizers share: one release a logical step, of a batch that the engine's loader drew.

    A mixin before one of Opacus' classes; everything of the wrapped optimizer (momentum, decay, schedules) is
    post-processing of the releases.

    Args:
        optimizer: the one to wrap; its trainable parameters are clipped and released.
        stream: noise for these parameters.
        batches: index batches of the run.
        loss_reduction: "mean" or "sum".
        bystanders: trainable parameters of the module that the optimizer doesn't hold.
        ranks: the processes among which every batch and the noise are shared out.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        stream: NoiseStream,
        batches: BatchStream,
        loss_reduction: str = "mean",
        bystanders: Sequence[Any] = (),
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(
            optimizer=optimizer,
            noise_multiplier=stream.mechanism.noise_multiplier,
            max_grad_norm=stream.clip_norm,
            expected_batch_size=batches.expected_batch_size,
            loss_reduction=loss_reduction,
        )
        self.stream = stream
        self.batches = batches
        self.ranks = ranks or Ranks()
        self.nonfinite = 0  # in this process, units of NaN or infinite gradient so far; each contributed nothing
        self.calls = 0  # calls of step(), one a physical batch
        self._seen = 0  # units summed into the release at hand
        self._leaves = self.params
        self._bystanders = bystanders
        self._frozen = self._settings()
        batches.position = lambda: stream.steps_taken

    def _settings(self) -> dict[str, Any]:
        names = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")
        return {name: getattr(self, name) for name in names}

    @property
    def steps_taken(self) -> int:
        """Releases so far."""
        return self.stream.steps_taken

    @property
    def accumulating(self) -> bool:
        """Whether the last call of step() summed a physical batch that doesn't end its logical one."""
        return bool(self._is_last_step_skipped)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Clip and sum the physical batch; at the end of a logical one also add noise and scale.

        Raises:
            ValueError: the mechanism's last step has been taken.
            RuntimeError: a layer was frozen or added, or a setting the guarantee rests on was changed.
        """
        check_horizon(self.steps_taken, self.stream.mechanism.steps)
        self._check_unchanged()
        self.calls += 1
        self.sum_clipped()
        for p in self._bystanders:
            p.grad_sample = None  # or the module's hooks would gather every batch's there
        self._is_last_step_skipped = bool(self._check_skip_next_step())
        if self._is_last_step_skipped:  # a physical batch that doesn't end its logical one
            return False
        self.add_noise()
        self.scale_grad()
        if self.step_hook:
            self.step_hook(self)
        return True

    def sum_clipped(self) -> None:
        """Add the physical batch's clipped gradients to `p.summed_grad`."""
        raise AssertionError("defined by the two classes below")

    def _check_unchanged(self) -> None:
        now = self.params
        if len(now) != len(self._leaves) or any(a is not b for a, b in zip(now, self._leaves)):
            raise RuntimeError(
                f"parameters: {len(now)} trainable of the {len(self._leaves)} that the noise was made for; layers "
                "can't be frozen, thawed or added during a private run; start a new one"
            )
        for name, value in self._settings().items():
            if value != self._frozen[name]:
                raise RuntimeError(
                    f"{name}={value!r}: was {self._frozen[name]!r} when the mechanism was calibrated; one joint "
                    "mechanism can't change during the run"
                )

    def add_noise(self) -> None:
        """Add row t of N Z to the sums, in place, and make them the gradients.

        Raises:
            RuntimeError: the units summed aren't those of this step's batch.
        """
        self._check_batch()
        sums = [p.summed_grad for p in self.params]
        self.stream.add_to(sums)  # this process's part of the noise: the sums carry each element's once
        self.ranks.sum_(sums)
        for p in self.params:
            if p.dtype in _HALVES and self.loss_reduction == "mean":
                p.summed_grad /= self.expected_batch_size  # before it is rounded: a sum may not fit
            p.grad, p.summed_grad = p.summed_grad.to(p.dtype), None

    def _check_batch(self) -> None:
        """Refuse units that aren't the batch's; if one process does, all do, and none waits for it."""
        reason = self._fault()
        (refused,) = self.ranks.any(reason is not None)
        if reason is not None:
            raise self._refusal(reason)
        if refused:
            raise self._refusal("another process refused its part; see its error")
        self._seen = 0

    def _fault(self) -> str | None:
        step, seen = self.steps_taken, self._seen
        if self.batches.issued < step:
            return (
                "no batch of this step was drawn; train on the data loader that the engine returned, since the "
                "guarantee holds for its batches only"
            )
        expected = len(self.batches.share(step))
        if seen == expected:
            return None
        return (
            f"{seen} per-sample gradients, but its batch has {expected} examples; call backward() and step() once "
            "for every batch of the engine's loader, and for nothing else"
        )

    def _refusal(self, reason: str) -> RuntimeError:
        """The error of a step that isn't released; what was summed for it is dropped, or it would join the next."""
        message = f"step={self.steps_taken + 1}: {reason}"
        self.discard_partial()
        return RuntimeError(message)

    def scale_grad(self) -> None:
        """Divide by the expected batch size, never by the realised one."""
        if self.loss_reduction == "mean":
            for p in (p for p in self.params if p.dtype not in _HALVES):
                p.grad /= self.expected_batch_size

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks before its step.

        Raises:
            RuntimeError: it scaled the loss, so every unit would have been clipped, and then shrunk.
        """
        raise RuntimeError(
            "optimizer: a GradScaler scales the loss, and per-sample gradients are clipped at that scale; train "
            "without one: bfloat16 needs none, and clipped gradients in float32 don't underflow"
        )

    def discard_partial(self) -> None:
        """Forget the physical batches of a logical one that was left unfinished."""
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        self._seen = 0
        for p in self._leaves:
            p.summed_grad = None
        for p in (*self._leaves, *self._bystanders):
            p.grad_sample = None

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, and under "bluegrad" the noise's and the batches'. Holds keys: secret.

        Of several processes all call it together; what they get doesn't depend on their number.
        """
        own = {
            "format": _FORMAT,
            "noise": self.stream.state_dict(),
            "batches": self.batches.state_dict(),
            "nonfinite": int(self.ranks.total(self.nonfinite)[0]),
        }
        return {**self.original_optimizer.state_dict(), _STATE: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a run of the same mechanism, model and data; a state that is refused changes nothing.

        Raises:
            ValueError: not a private optimizer's state, or another mechanism's, model's or data set's.
        """
        own = state_dict.get(_STATE) if isinstance(state_dict, dict) else None
        found = own.get("format") if isinstance(own, dict) else None
        if not isinstance(own, dict) or not isinstance(found, str) or found != _FORMAT:
            raise _checks.fail(
                "state_dict", type(state_dict).__name__, f"holds no {_FORMAT} state: without the noise's state the "
                "run can't go on under its guarantee", "load what this optimizer's state_dict() gave",
            )  # fmt: skip
        part = f"[{_STATE!r}]"
        try:
            nonfinite = _checks.integer("nonfinite", own.get("nonfinite"), minimum=0, fix="load a valid state")
            part = f"[{_STATE!r}]['noise']"
            self.stream.check_state_dict(own.get("noise"))
            part = f"[{_STATE!r}]['batches']"
            self.batches.check_state_dict(own.get("batches"))
            part = ""
            load_wrapped(self.original_optimizer, {k: v for k, v in state_dict.items() if k != _STATE})
        except ValueError as error:
            raise ValueError(f"state_dict{part}: {error}") from None
        # nothing below can be refused any more
        self.stream.load_state_dict(own["noise"])
        self.batches.load_state_dict(own["batches"])
        self.nonfinite = nonfinite if self.ranks.first else 0
        self.discard_partial()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError("a private optimizer can't be copied: two copies would draw the same noise; use state_dict()")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private optimizer can't be pickled: it holds the noise key; save its state_dict()")


class PrivateOptimizer(CorrelatedNoise):
    """For per-sample gradients in memory (`hooks`, `functorch`)."""

    def sum_clipped(self) -> None:
        """Scale every unit's gradient to at most the clip norm and sum; drop units that aren't finite."""
        rows = [self._rows(p) for p in self.params]
        known = [g for g in rows if g is not None]
        size = len(known[0]) if known else 0
        factors = self._clip_factors(known) if size else torch.zeros(0)
        for p, grad_sample in zip(self.params, rows):
            if grad_sample is None:  # a layer that this batch didn't use, or a batch without units
                grad = torch.zeros_like(p, dtype=_wide(p))
            else:
                grad = torch.einsum("i,i...", factors.to(grad_sample), grad_sample)
                p.grad_sample = None
            p.summed_grad = grad if p.summed_grad is None else p.summed_grad.add_(grad)
        self._seen += size

    def _rows(self, p: torch.Tensor) -> torch.Tensor | None:
        """Per-sample gradients in float32 or better, whatever autocast made of them: norms of 8 bits bound nothing."""
        if getattr(p, "grad_sample", None) is None:
            return None
        return self._get_flat_grad_sample(p).to(_wide(p))

    def _clip_factors(self, grad_samples: list[torch.Tensor]) -> torch.Tensor:
        """min(1, clip / norm) for every unit, 0 for one whose gradient isn't finite (its rows are zeroed)."""
        device = grad_samples[0].device
        norms = [g.flatten(1).norm(dim=1).to(device) for g in grad_samples]
        norm = torch.stack(norms, dim=1).norm(dim=1)
        factors = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        bad = ~torch.isfinite(norm)
        if bad.any():
            self.nonfinite += int(bad.sum())
            factors[bad] = 0.0
            for g in grad_samples:  # zero times NaN is NaN: the rows themselves must go
                g[bad.to(g.device)] = 0.0
        return factors


class PrivateGhostOptimizer(CorrelatedNoise, DPOptimizerFastGradientClipping):
    """For ghost clipping: the engine's criterion has left the sum of clipped gradients in `p.summed_grad`."""

    def take(self, units: int) -> None:
        """Take over `p.grad`, the sum of `units` clipped gradients, without a copy.

        Raises:
            RuntimeError: the sum isn't finite, which a released gradient never may be.
        """
        for p in self.params:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            if not torch.isfinite(grad).all():
                raise self._refusal("gradients aren't finite after clipping; use grad_sample_mode='hooks'")
            p.summed_grad = grad if p.summed_grad is None else p.summed_grad.add_(grad)
            p.grad = None
        self._seen += units

    def sum_clipped(self) -> None:
        """Check that nothing but clipped gradients is there.

        Raises:
            RuntimeError: a gradient came from another loss, so nothing has clipped it.
        """
        if any(p.grad is not None for p in self.params):
            raise self._refusal("gradients of a loss other than the engine's criterion, which nothing has clipped")
        for p in self.params:
            if p.summed_grad is None:
                p.summed_grad = torch.zeros_like(p)
