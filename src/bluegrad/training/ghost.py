"""The loss of ghost clipping: two backward passes, and units that aren't finite left out exactly."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NoReturn

import torch
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping
from torch import nn

from bluegrad import _checks
from bluegrad.training.optimizer import PrivateGhostOptimizer


class GhostCriterion:
    """A criterion whose result's `backward()` hands the optimizer the sum of clipped gradients.

    Args:
        module: the wrapped model (Opacus' ghost-clipping module).
        optimizer: the private optimizer.
        criterion: a loss module with a `reduction` attribute, called as criterion(output, target).
        loss_reduction: "mean" or "sum", as of the criterion.

    Raises:
        ValueError: the criterion has no `reduction`, or another one.
    """

    def __init__(
        self, module: nn.Module, optimizer: PrivateGhostOptimizer, criterion: nn.Module, loss_reduction: str
    ) -> None:
        check_criterion(criterion, loss_reduction)
        self.module, self.optimizer = module, optimizer
        self._per_sample = DPLossFastGradientClipping(module, optimizer, criterion, loss_reduction)
        self._inputs: tuple[Any, ...] = ()
        module.register_forward_pre_hook(self._remember)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training and torch.is_grad_enabled():
            self._inputs = inputs

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> GhostLoss:
        """Per-sample losses of a batch, to be followed by `backward()`."""
        loss = self._per_sample(output, target).loss_per_sample
        if loss.dim() != 1:
            raise _checks.fail(
                "loss.shape", tuple(loss.shape), "must be one loss an example", "reduce over the other dimensions"
            )
        return GhostLoss(self, loss, target)

    def without(self, bad: torch.Tensor, target: torch.Tensor) -> None:
        """Clip and sum the units that are finite: forward and both backward passes again, without the bad ones.

        A zero weight isn't enough: zero times infinity in a layer's backward pass is NaN in every weight.

        Raises:
            RuntimeError: the model's inputs aren't one tensor of one row a unit.
        """
        inputs, keep = self._inputs, ~bad
        if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor) or len(inputs[0]) != len(bad):
            raise RuntimeError(
                "gradients: not finite for some units, which ghost clipping can leave out only if the model takes "
                "one tensor of one row a unit; use grad_sample_mode='hooks'"
            )
        if keep.any():
            self(self.module(inputs[0][keep]), target[keep]).clip_and_sum()


def check_criterion(criterion: nn.Module, loss_reduction: str) -> None:
    """Refuse a criterion of another reduction, or of none.

    Raises:
        ValueError: `criterion.reduction` isn't `loss_reduction`.
    """
    reduction = getattr(criterion, "reduction", None)
    if reduction != loss_reduction:
        raise _checks.fail(
            "criterion.reduction", reduction, f"must equal loss_reduction={loss_reduction!r}",
            "give a torch.nn loss of that reduction, such as torch.nn.CrossEntropyLoss()",
        )  # fmt: skip


class GhostLoss(DPTensorFastGradientClipping):
    """Losses of a batch; `item()` and `detach()` as of a tensor, `backward()` clips and sums."""

    def __init__(self, criterion: GhostCriterion, loss: torch.Tensor, target: torch.Tensor) -> None:
        super().__init__(criterion.module, criterion.optimizer, loss, criterion._per_sample.loss_reduction)
        self._criterion, self._target = criterion, target

    def backward(self) -> None:
        """Hand the sum of clipped gradients to the optimizer; `p.grad` stays empty until its step."""
        self.clip_and_sum()
        self.optimizer.take(len(self.loss_per_sample))

    def clip_and_sum(self) -> None:
        """First pass for the norms, second for the sum of clipped gradients."""
        with warnings.catch_warnings():
            # Opacus' hooks on a first layer, whose input needs no gradient; they work all the same
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._two_passes()

    def _two_passes(self) -> None:
        self._check_uses()
        for p in self.optimizer.params:
            # what an earlier batch or another loss left: a layer that this batch doesn't use has norm and gradient 0
            p.grad = p._norm_sample = None
        reduced = self.loss_per_sample.mean() if self.loss_reduction == "mean" else self.loss_per_sample.sum()
        reduced.backward(retain_graph=True)
        norms = self._norms()
        for p in self.optimizer.params:
            p.grad = None  # the first pass is for the norms; its gradients aren't clipped
        bad = ~torch.isfinite(norms)
        if bad.any():
            self.optimizer.nonfinite += int(bad.sum())
            self._criterion.without(bad, self._target)
            return
        # the optimizer's norm, not the module's: the one that the noise was scaled for
        weights = (self.optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        self.module.disable_hooks()
        try:
            (weights.to(self.loss_per_sample.device) * self.loss_per_sample).sum().backward()
        finally:
            self.module.enable_hooks()

    def _check_uses(self) -> None:
        """Refuse a parameter that is used outside its layer's calls: the layer's hooks don't see that gradient."""
        samplers = {*GradSampleHooksFastGradientClipping.NORM_SAMPLERS, *GradSampleHooks.GRAD_SAMPLERS}
        once_a_call = {
            id(p) for m in self.module.modules() if type(m) in samplers for p in m.parameters(recurse=False)
        }  # fmt: skip
        uses = count_uses(self.loss_per_sample)
        for p in self.optimizer.params:
            calls = p._forward_counter
            if uses[id(p)] > calls and (calls == 0 or id(p) in once_a_call):
                raise self._unclipped(p, f"is used {uses[id(p)]} times, {calls} of them in its layer's forward")

    def _norms(self) -> torch.Tensor:
        """Norm of every unit's gradient over the optimizer's parameters: those that are released, as under hooks.

        Raises:
            RuntimeError: a parameter has a gradient and no norms.
        """
        losses, used = self.loss_per_sample, []
        for p in self.optimizer.params:
            if p._norm_sample is not None:
                if p._norm_sample.dtype in (torch.float16, torch.bfloat16):
                    raise self._unclipped(p, "has norms in half precision (autocast), which bound nothing exactly")
                used.append(p._norm_sample.to(losses.device))
            elif p.grad is not None:
                raise self._unclipped(p, "has a gradient whose norms weren't seen")
        return torch.stack(used).norm(2, dim=0) if used else torch.zeros_like(losses)

    def _unclipped(self, parameter: torch.Tensor, reason: str) -> RuntimeError:
        for p in self.optimizer.params:
            p.grad = None
        name = next(name for name, p in self.module._module.named_parameters() if p is parameter)
        return self.optimizer._refusal(
            f"parameter {name!r} {reason}, so its gradient can't be clipped; call the layer itself, once a batch, or "
            "use grad_sample_mode='hooks'"
        )

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a ghost-clipping loss can't be scaled or combined; put that into the criterion")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _refuse


def count_uses(loss: torch.Tensor) -> Counter[int]:
    """How many operations of the loss's graph read each leaf, by the leaf's id."""
    uses: Counter[int] = Counter()
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        for following, _ in () if node is None else node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                uses[id(leaf)] += 1
            elif following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return uses
