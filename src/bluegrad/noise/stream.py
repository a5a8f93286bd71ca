"""The stream of correlated noise N Z for a list of parameters, resumable at any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bluegrad import _checks
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey, require_key
from bluegrad.noise.place import Device, Floats, choose_places
from bluegrad.noise.source import Source, choose_source
from bluegrad.strategy.base import check_horizon

_FORMAT = "bluegrad-noise-1"
# Smallest standard deviation of the raw noise; float32 ends at 1e-38, and recurrences need some room below.
_SMALLEST = 1e-30
_CHUNK = 1 << 20  # elements of scratch where noise can't be added in place (another device or dtype)


@dataclass(frozen=True)
class Shard:
    """One process's part of every leaf: elements rank * size // ranks up to (rank + 1) * size // ranks.

    Args:
        rank: 0 .. ranks - 1.
        ranks: number of processes.
        whole: makes an array of all elements out of every process's part; called by all of them together.
    """

    rank: int = 0
    ranks: int = 1
    whole: Callable[[Floats, int], Floats] = lambda part, size: part

    def span(self, size: int) -> range:
        """The part of a leaf of `size` elements."""
        return range(self.rank * size // self.ranks, (self.rank + 1) * size // self.ranks)


class NoiseStream:
    """Row t of N Z at step t, for parameters of given shapes: what makes a sum of clipped gradients private.

    Z has standard deviation `mechanism.noise_scale(clip_norm)` and is a pure function of (key, step, leaf,
    element): the same numbers for any thread count, process, device or order of calls. Where N has few bands
    (lambda-CGD: two) earlier noise is drawn again and nothing is stored; where it has many, the raw noise drawn
    so far is kept in memory, and drawn again on resume; only where C is banded and N is not are there buffers
    that a checkpoint must carry.

    Args:
        mechanism: strategy, participation and noise multiplier.
        like: tensors whose shapes, dtypes and devices the noise shall have, one a leaf, in a fixed order.
        clip_norm: largest norm of one unit's contribution to a step.
        key: a fresh NoiseKey.
        history: where noise that isn't drawn again is kept: "host" memory, the parameters' "device", or a folder, in
            which a nameless file is mapped into memory. The numbers don't depend on it.
        shard: draw a part of every leaf only; the parts of all processes add up to the noise.

    Raises:
        ValueError: no or non-floating tensors, a clip norm that isn't above 0, noise too small or too large for
            float32, a key that is no NoiseKey, or a history
            that is neither of the words nor a folder.

    Example:
        >>> from bluegrad import FixedEpochs, calibrate, lambda_cgd
        >>> mechanism = calibrate(lambda_cgd(10, 0.5), FixedEpochs(10, 2), epsilon=1.0, delta=1e-5)
        >>> stream = NoiseStream(mechanism, [torch.zeros(2, 3)], clip_norm=1.0, key=NoiseKey.generate())
        >>> [tuple(noise.shape) for noise in stream.next()], stream.steps_taken
        ([(2, 3)], 1)

    Guarantees: exactly `mechanism.steps` steps, each handed out once; one more raises.
    Source: arXiv 2601.22334, algorithm 1 (regeneration).
    """

    def __init__(
        self,
        mechanism: Mechanism,
        like: Sequence[torch.Tensor],
        *,
        clip_norm: float,
        key: NoiseKey,
        history: str | Path = "host",
        shard: Shard | None = None,
    ) -> None:
        if not isinstance(mechanism, Mechanism):
            raise _checks.fail("mechanism", mechanism, "must be a Mechanism", "bluegrad.calibrate makes one")
        if len(like) == 0 or not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in like):
            kinds = [getattr(x, "dtype", type(x).__name__) for x in like]
            raise _checks.fail(
                "like", kinds, "must be floating-point tensors, at least one", "give the model's parameters"
            )
        self.mechanism = mechanism
        self.clip_norm = _checks.real(
            "clip_norm", clip_norm, low=0.0, low_open=True, fix="give the norm that gradients are clipped to"
        )
        _checks.real(
            "noise scale", mechanism.noise_scale(self.clip_norm), low=_SMALLEST, high=1.0 / _SMALLEST,
            fix="noise is float32, and would be zero or infinite; scale clip_norm and the strategy",
        )  # fmt: skip
        self._key = require_key(key)
        self._templates = [(x.shape, x.dtype, x.device) for x in like]
        self._shard = shard or Shard()
        self._spans = [self._shard.span(shape.numel()) for shape, _, _ in self._templates]
        self._step = 0
        self._places = choose_places(history, [device for _, _, device in self._templates])
        self._source = self._make_source(self._key)

    def _make_source(self, key: NoiseKey) -> Source:
        scale = self.mechanism.noise_scale(self.clip_norm)
        return choose_source(self.mechanism.strategy, self._spans, scale, key, self._places)

    @property
    def generator(self) -> str:
        """How the noise is drawn, for a ledger."""
        return self._key.generator

    @property
    def steps_taken(self) -> int:
        """Steps whose noise has been handed out."""
        return self._step

    def next(self) -> list[torch.Tensor]:
        """Noise of the next step, one tensor a leaf.

        Raises:
            ValueError: the mechanism's last step has been taken.
        """
        noise = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in self._templates]
        self.add_to(noise)
        return noise

    def add_to(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the noise of the next step to tensors in place, a leaf at a time.

        Contiguous float32 tensors in host memory need no scratch beyond a few blocks.

        Args:
            tensors: one a leaf, of the shapes the stream was made for.

        Raises:
            ValueError: the shapes differ, or the mechanism's last step has been taken.
        """
        check_horizon(self._step, self.mechanism.steps)
        shapes = [list(x.shape) for x in tensors]
        if shapes != self._shapes():
            raise _checks.fail(
                "tensors", shapes, f"must have the shapes {self._shapes()}", "keep the parameters and their order"
            )
        for leaf, tensor in enumerate(tensors):
            self._add_leaf(leaf, tensor.detach())
        self._source.finish(self._step)
        self._step += 1

    def _add_leaf(self, leaf: int, tensor: torch.Tensor) -> None:
        span = self._spans[leaf]
        if not tensor.is_contiguous():  # elements are numbered in logical order, whatever the memory format
            noise = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
            self._add_leaf(leaf, noise)
            tensor.add_(noise.to(tensor.dtype))
            return
        flat = tensor.view(-1)[span.start : span.stop]
        if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
            self._source.add(flat.numpy(), self._step, leaf, span.start)
        elif isinstance(self._places[leaf], Device):
            noise = torch.zeros(len(span), dtype=torch.float32, device=tensor.device)
            self._source.add(noise, self._step, leaf, span.start)
            flat.add_(noise.to(tensor.dtype))
        else:
            for start in range(0, len(span), _CHUNK):
                part: Floats = np.zeros(min(_CHUNK, len(span) - start), dtype=np.float32)
                self._source.add(part, self._step, leaf, span.start + start)
                flat[start : start + len(part)].add_(torch.from_numpy(part).to(tensor.device, tensor.dtype))

    def _shapes(self) -> list[list[int]]:
        return [list(shape) for shape, _, _ in self._templates]

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which a stream of the same mechanism continues bit for bit.

        It doesn't depend on how the noise is shared out among processes; all of them call it together.

        Returns:
            Numbers, strings, lists and tensors. It holds the key: keep it as secret as the data.
        """
        sizes = [shape.numel() for shape, _, _ in self._templates]
        return {
            "format": _FORMAT,
            "mechanism": self.mechanism.fingerprint,
            "clip_norm": self.clip_norm,
            "shapes": self._shapes(),
            "key": self._key.hex(),
            "step": self._step,
            "buffers": [
                [torch.from_numpy(self._shard.whole(x.copy(), size)) for x in leaf]
                for size, leaf in zip(sizes, self._source.buffers())
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, with its key; a state that is refused changes nothing.

        Args:
            state: a state of a stream of the same mechanism, clip norm and shapes.

        Raises:
            ValueError: it isn't one, or belongs to another mechanism, clip norm or model.
        """
        self._key, self._step, buffers = self._parse(state)
        del self._source  # its arrays first: there may not be room for both
        self._source = self._make_source(self._key)
        self._source.restore(buffers)

    def check_state_dict(self, state: Any) -> None:
        """Refuse what `load_state_dict` would refuse, and load nothing.

        Raises:
            ValueError: as `load_state_dict`.
        """
        self._parse(state)

    def _parse(self, state: Any) -> tuple[NoiseKey, int, list[list[Floats]]]:
        fix = "load what state_dict gave"
        if not isinstance(state, dict):
            raise _checks.fail("state", type(state).__name__, f"isn't a {_FORMAT} state", fix)
        _checks.equal("state['format']", state.get("format"), _FORMAT, fix=fix)
        own = {"mechanism": self.mechanism.fingerprint, "clip_norm": self.clip_norm, "shapes": self._shapes()}
        for name, value in own.items():
            _checks.equal(
                f"state[{name!r}]", state.get(name), value,
                fix="resume with the mechanism, clip norm and model that were saved",
            )  # fmt: skip
        step = _checks.integer("state['step']", state.get("step"), minimum=0, fix=fix)
        if step > self.mechanism.steps:
            raise _checks.fail("state['step']", step, f"exceeds steps={self.mechanism.steps}", "load a valid state")
        key = NoiseKey.from_hex(state.get("key", ""))
        return key, step, self._parse_buffers(state.get("buffers"), step)

    def _parse_buffers(self, buffers: Any, step: int) -> list[list[Floats]]:
        rows, sizes = self._source.rows(step), [shape.numel() for shape, _, _ in self._templates]
        if not isinstance(buffers, (list, tuple)) or not all(isinstance(leaf, (list, tuple)) for leaf in buffers):
            found: Any = type(buffers).__name__
        else:
            found = [[_kind(x) for x in leaf] for leaf in buffers]
        expected = [[_kind(torch.empty(size, device="meta"))] * rows for size in sizes]
        if found != expected:
            raise _checks.fail(
                "state['buffers']", found, f"must be {expected} after step {step}",
                "without them the noise can't go on; load what state_dict gave",
            )  # fmt: skip
        for at, x in ((at, x) for at, leaf in enumerate(buffers) for x in leaf):
            if not torch.isfinite(x).all():
                # it would stay in the recurrence, and no release would be noise again
                raise _checks.fail(
                    f"state['buffers'][{at}]", "NaN or infinity", "must be finite", "load what state_dict gave"
                )
        spans = [slice(span.start, span.stop) for span in self._spans]
        return [[x.detach().cpu().numpy()[span] for x in leaf] for span, leaf in zip(spans, buffers)]


def _kind(x: Any) -> str:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return type(x).__name__
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
