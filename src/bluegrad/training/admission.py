"""What may become a private run: mechanism, batches and model, refused at the door by name."""

from __future__ import annotations

from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from bluegrad import _checks
from bluegrad._checks import Unsupported
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.participation import FixedEpochs, Participation
from bluegrad.sampling import batch_stream
from bluegrad.strategy import Strategy
from bluegrad.training.ghost import check_criterion
from bluegrad.training.optimizer import CorrelatedNoise

_DISTRIBUTED = (DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel, FSDPModule)
_HALVES = (torch.float16, torch.bfloat16)
_MODES = ("hooks", "functorch", "ghost")


def check_mode(grad_sample_mode: str, criterion: nn.Module | None, loss_reduction: str) -> None:
    """Refuse a mode that isn't known, or whose criterion isn't there or doesn't fit.

    Raises:
        ValueError: unknown, a criterion without ghost clipping or the reverse, or one of another reduction.
    """
    _checks.choice("grad_sample_mode", grad_sample_mode, _MODES)
    _checks.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    if (grad_sample_mode == "ghost") != (criterion is not None):
        raise _checks.fail(
            "criterion", criterion, f"goes with grad_sample_mode='ghost', not with {grad_sample_mode!r} alone",
            "give the loss module for ghost clipping, and only then",
        )  # fmt: skip
    if criterion is not None:
        check_criterion(criterion, loss_reduction)


def choose_mechanism(
    mechanism: Mechanism | None,
    strategy: Strategy | None,
    noise_multiplier: float | None,
    participation: Participation | None,
    epoch_steps: int,
) -> Mechanism:
    """The mechanism given, or the one of the strategy and noise multiplier.

    Raises:
        ValueError: both or neither are given, or their steps aren't whole epochs.
    """
    if mechanism is not None:
        if not isinstance(mechanism, Mechanism):
            raise _checks.fail("mechanism", mechanism, "must be a Mechanism", "bluegrad.calibrate makes one")
        if strategy is not None or noise_multiplier is not None or participation is not None:
            raise _checks.fail(
                "mechanism", mechanism, "already says strategy, participation and noise multiplier",
                "give either the mechanism or these",
            )  # fmt: skip
        return mechanism
    if strategy is None or noise_multiplier is None:
        raise _checks.fail(
            "mechanism", None, "is needed, or else strategy and noise_multiplier",
            "use make_private_with_epsilon to have it calibrated",
        )  # fmt: skip
    if participation is None:
        if strategy.steps % epoch_steps:
            raise _checks.fail(
                "strategy.steps", strategy.steps, f"must be a multiple of the loader's {epoch_steps} batches",
                "or give participation=",
            )  # fmt: skip
        participation = FixedEpochs(strategy.steps, strategy.steps // epoch_steps)
    return Mechanism(strategy, participation, noise_multiplier)


def check_batches(loader: DataLoader[Any], mechanism: Mechanism) -> None:
    """Refuse a loader whose number of batches isn't the epoch that the mechanism was made for.

    Raises:
        ValueError: another number, and another batch size with it.
    """
    probe = batch_stream(mechanism.participation, len(loader.dataset), NoiseKey.generate())  # type: ignore[arg-type]
    expected, asked = probe.expected_batch_size, loader.batch_size
    assert asked is not None
    if probe.epoch_steps != len(loader) and abs(expected - asked) > 1.0:
        raise _checks.fail(
            "len(data_loader)", len(loader),
            f"differs from the {probe.epoch_steps} steps an epoch of {mechanism.participation!r}, whose mean batch "
            f"is {expected:g}, not {asked}",
            "make the mechanism for len(data_loader) steps an epoch, or change the batch size",
        )  # fmt: skip


def check_model(module: nn.Module, optimizer: Optimizer, grad_sample_mode: str) -> None:
    """Refuse a model or optimizer whose run can't be private.

    Raises:
        ValueError: wrapped already, BatchNorm or another layer Opacus refuses, evaluation mode, foreign parameters.
        Unsupported: distributed wrappers, other dtypes, half precision in ghost mode, or optimizers that evaluate the
            loss themselves.
    """
    if isinstance(module, _DISTRIBUTED):
        raise Unsupported(
            f"module={type(module).__name__}: would sum the gradients of several processes before they are clipped; "
            "pass the plain module: the engine's optimizer sums what was clipped, with the noise"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, AbstractGradSampleModule) or "autograd_grad_sample_hooks" in vars(layer):
            raise _checks.fail(
                f"module.{name}" if name else "module", type(layer).__name__,
                "is wrapped for a private run already, and one model can't have the hooks of two",
                "build the model anew, or pass what to_standard_module() of the wrapped one returns",
            )  # fmt: skip
        if isinstance(layer, _BatchNorm):
            raise _checks.fail(
                f"module.{name}" if name else "module", type(layer).__name__,
                "mixes the examples of a batch, so one unit's influence isn't bounded by clipping its gradient",
                "use torch.nn.GroupNorm or LayerNorm (opacus.validators.ModuleValidator.fix(model) converts)",
            )  # fmt: skip
        if getattr(layer, "track_running_stats", False):
            raise _checks.fail(
                f"module.{name}" if name else "module", type(layer).__name__,
                "keeps running statistics of the data, which nothing clips and no noise covers",
                "use track_running_stats=False",
            )  # fmt: skip
    if not module.training:
        raise _checks.fail("module.training", False, "must be in training mode", "call module.train()")
    problems = ModuleValidator.validate(module, strict=False)
    if problems:
        raise ValueError("module: " + "; ".join(str(problem) for problem in problems))
    if isinstance(optimizer, CorrelatedNoise):
        raise _checks.fail("optimizer", type(optimizer).__name__, "is private already", "pass a plain torch optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported("optimizer=LBFGS: evaluates the loss several times a step, outside the mechanism; use SGD")
    known = {id(p) for p in module.parameters()}
    leaves = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not leaves or any(id(p) not in known for p in leaves):
        raise _checks.fail(
            "optimizer.param_groups", f"{len(leaves)} trainable parameters", "must be parameters of the module",
            "build the optimizer from module.parameters()",
        )  # fmt: skip
    _check_precision(leaves, grad_sample_mode)


def _check_precision(leaves: list[torch.Tensor], grad_sample_mode: str) -> None:
    for p in leaves:
        if p.dtype not in (torch.float32, torch.float64, *_HALVES):
            raise Unsupported(f"parameter dtype={p.dtype}: known are float64, float32, bfloat16 and float16")
        if p.dtype in _HALVES and grad_sample_mode == "ghost":
            raise Unsupported(f"parameter dtype={p.dtype} with grad_sample_mode='ghost': its norms are in half "
                              "precision and bound nothing exactly; use 'hooks'")  # fmt: skip
