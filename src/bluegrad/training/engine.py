"""The engine: Opacus' shapes and habits, with one mechanism for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opacus.grad_sample import prepare_module
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from bluegrad import _checks, accounting, optimize
from bluegrad._checks import Unsupported
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.noise.stream import NoiseStream
from bluegrad.participation import FixedEpochs, Participation
from bluegrad.sampling import batch_stream
from bluegrad.strategy import Strategy
from bluegrad.training import checkpoint, ledger, ranks
from bluegrad.training.admission import check_batches, check_mode, check_model, choose_mechanism
from bluegrad.training.ghost import GhostCriterion
from bluegrad.training.loader import PrivateDataLoader, check_loader, choose_collation
from bluegrad.training.optimizer import CorrelatedNoise, PrivateGhostOptimizer, PrivateOptimizer
from bluegrad.workload import PrefixSum, Workload

# A strategy, or what finds one: the functions of bluegrad.optimize have this shape.
StrategyChoice = Strategy | Callable[[Workload, Participation], Strategy]


class PrivacyEngine:
    """Makes one training run private: model, optimizer and data loader come back wrapped.

    Guarantees: those of `mechanism`, for the weights after every one of its `mechanism.steps` optimizer steps on the
    batches of the returned loader. Batches are counted and so are their examples, but what the training loop makes
    of them isn't seen: one that takes a step on other tensors, as many as the batch has, trains on data that
    nothing sampled and the guarantee isn't about. Hyperparameters tuned on the same data, and anything else computed
    from it, aren't covered. Nor are both of two continuations of one checkpoint that differ in anything but noise:
    they add the same noise to different gradients.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.randn(64, 3), torch.randint(2, (64,)))
        >>> model = torch.nn.Linear(3, 2)
        >>> engine = PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private_with_epsilon(
        ...     module=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=DataLoader(data, batch_size=16),
        ...     target_epsilon=4.0,
        ...     target_delta=1e-5,
        ...     epochs=2,
        ...     max_grad_norm=1.0,
        ... )
        >>> for _ in range(2):
        ...     for x, y in loader:
        ...         torch.nn.functional.cross_entropy(model(x), y).backward()
        ...         _ = optimizer.step()
        ...         optimizer.zero_grad()
        >>> engine.get_epsilon(1e-5) <= 4.0
        True
    """

    def __init__(self) -> None:
        self._mechanism: Mechanism | None = None
        self._optimizer: CorrelatedNoise | None = None
        self._spent = (0, 0.5), 0.0  # the last answer, with the steps and the delta that it is for

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the run.

        Raises:
            RuntimeError: nothing was made private yet.
        """
        if self._mechanism is None:
            raise RuntimeError("engine: no run was made private yet; call make_private first")
        return self._mechanism

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        mechanism: Mechanism | None = None,
        strategy: Strategy | None = None,
        noise_multiplier: float | None = None,
        participation: Participation | None = None,
        criterion: nn.Module | None = None,
        loss_reduction: str = "mean",
        batch_first: bool = True,
        grad_sample_mode: str = "hooks",
        max_physical_batch_size: int | None = None,
        key: NoiseKey | None = None,
        sampling_key: NoiseKey | None = None,
        noise_history: str | Path = "host",
    ) -> tuple[Any, ...]:
        """Wrap model, optimizer and loader for a mechanism, or for a strategy and a noise multiplier.

        Args:
            module: model in training mode, without layers that mix examples (BatchNorm).
            optimizer: any torch optimizer over the model's parameters; those that it holds are clipped, together,
                and released, and nothing may train the others on the same data.
            data_loader: loader of a map-style data set; its batches are replaced by the participation's.
            max_grad_norm: clip norm of one unit's gradient.
            mechanism: the whole mechanism; or else
            strategy: C, with
            noise_multiplier: standard deviation of Z over clip norm times sensitivity, and
            participation: defaults to FixedEpochs, with the loader's number of batches an epoch.
            criterion: loss module; needed (and returned wrapped) for ghost clipping only.
            loss_reduction: the loss's reduction over a batch, "mean" or "sum".
            batch_first: whether the batch is the first dimension of the model's inputs.
            grad_sample_mode: "hooks", "functorch" or "ghost".
            max_physical_batch_size: largest batch to hold in memory; the loader splits larger ones, and
                optimizer.step() releases at the end of each.
            key: noise key; by default a fresh one, which is right except in tests.
            sampling_key: secret of the batches; by default a fresh one.
            noise_history: where earlier noise is kept if the strategy needs it: "host", "device" or a folder.

        Returns:
            (module, optimizer, loader); with ghost clipping (module, optimizer, criterion, loader), as Opacus.

        Raises:
            ValueError: an argument is out of range, or loader, model and mechanism don't fit each other.
            Unsupported: a combination whose guarantee isn't proved.
            RuntimeError: the engine has already made a run private.
        """
        if self._optimizer is not None:
            raise RuntimeError("engine: guards one run already; make another PrivacyEngine")
        loader = check_loader(data_loader)
        check_mode(grad_sample_mode, criterion, loss_reduction)
        if max_physical_batch_size is not None:
            _checks.integer("max_physical_batch_size", max_physical_batch_size, minimum=1, fix="or None")
        chosen = choose_mechanism(mechanism, strategy, noise_multiplier, participation, len(loader))
        check_batches(loader, chosen)
        check_model(module, optimizer, grad_sample_mode)
        leaves = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        group = ranks.current()
        stream = NoiseStream(
            chosen, leaves, clip_norm=max_grad_norm, key=group.key(key), history=noise_history, shard=group.shard()
        )
        batches = batch_stream(chosen.participation, len(loader.dataset), group.key(sampling_key))  # type: ignore[arg-type]
        batches.rank, batches.ranks = group.rank, group.count
        ghost = grad_sample_mode == "ghost"
        if batches.may_be_empty and grad_sample_mode == "functorch":
            raise Unsupported(
                f"grad_sample_mode='functorch' under {chosen.participation!r}: it fails on the empty batches that this "
                "law may draw; use 'hooks' or 'ghost'"
            )
        collate = choose_collation(loader, batches)
        # all that can be refused has been: from here on the model changes
        group.align([tensor.detach() for tensor in (*module.parameters(), *module.buffers())])
        extra = {"max_grad_norm": max_grad_norm} if ghost else {}
        wrapped = prepare_module(
            module, grad_sample_mode=grad_sample_mode, batch_first=batch_first, loss_reduction=loss_reduction, **extra
        )
        kind = PrivateGhostOptimizer if ghost else PrivateOptimizer
        held = {id(p) for p in leaves}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in held]
        private = kind(
            optimizer, stream=stream, batches=batches, loss_reduction=loss_reduction, bystanders=others, ranks=group
        )
        returned = PrivateDataLoader(loader, batches, private, collate, max_physical_batch_size)
        self._mechanism, self._optimizer = chosen, private
        if isinstance(private, PrivateGhostOptimizer) and criterion is not None:
            return wrapped, private, GhostCriterion(wrapped, private, criterion, loss_reduction), returned
        return wrapped, private, returned

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        strategy: StrategyChoice = optimize.lambda_cgd,
        participation: Participation | None = None,
        criterion: nn.Module | None = None,
        loss_reduction: str = "mean",
        batch_first: bool = True,
        grad_sample_mode: str = "hooks",
        max_physical_batch_size: int | None = None,
        key: NoiseKey | None = None,
        sampling_key: NoiseKey | None = None,
        noise_history: str | Path = "host",
    ) -> tuple[Any, ...]:
        """As `make_private`, for a target: the least noise that is (target_epsilon, target_delta)-DP.

        Args:
            module: see `make_private`, as all that isn't listed here.
            optimizer: see `make_private`.
            data_loader: its number of batches is an epoch's steps.
            target_epsilon: privacy budget of the whole run.
            target_delta: failure probability.
            epochs: passes over the data; the run has epochs * len(data_loader) steps.
            max_grad_norm: clip norm of one unit's gradient.
            strategy: C over that many steps, or a function of `bluegrad.optimize`; lambda-CGD of least RMSE
                by default.
            participation: defaults to FixedEpochs over that many steps.
            criterion: see `make_private`.
            loss_reduction: see `make_private`.
            batch_first: see `make_private`.
            grad_sample_mode: see `make_private`.
            max_physical_batch_size: see `make_private`.
            key: see `make_private`.
            sampling_key: see `make_private`.
            noise_history: see `make_private`.

        Returns:
            As `make_private`.

        Raises:
            ValueError: as `make_private`; a target out of range, or that no noise meets.
            Unsupported: a combination whose guarantee isn't proved.
            RuntimeError: the engine has already made a run private.
        """
        _checks.epsilon(target_epsilon, "target_epsilon")
        _checks.delta(target_delta, "target_delta")
        _checks.integer("epochs", epochs, minimum=1, fix="give the number of passes over the data")
        steps = epochs * len(check_loader(data_loader))
        law = participation or FixedEpochs(steps, epochs)
        c = strategy if isinstance(strategy, Strategy) else strategy(PrefixSum(law.steps), law)
        if law.steps != steps:
            raise _checks.fail(
                "participation.steps", law.steps, f"must equal epochs * len(data_loader) = {steps}",
                "build it for that many steps",
            )  # fmt: skip
        return self.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            max_grad_norm=max_grad_norm,
            mechanism=accounting.calibrate(c, law, epsilon=target_epsilon, delta=target_delta),
            criterion=criterion,
            loss_reduction=loss_reduction,
            batch_first=batch_first,
            grad_sample_mode=grad_sample_mode,
            max_physical_batch_size=max_physical_batch_size,
            key=key,
            sampling_key=sampling_key,
            noise_history=noise_history,
        )

    def get_epsilon(self, delta: float) -> float:
        """Epsilon of the mechanism in use, that is of the whole run, at delta.

        Raises:
            ValueError: delta out of range.
            RuntimeError: nothing was made private yet.
        """
        return accounting.epsilon(self.mechanism, delta=delta)

    def get_epsilon_spent(self, delta: float) -> float:
        """Epsilon of the steps taken so far at delta, should the run stop here; 0 before the first.

        Before the last step it may be found by the method "quick": as valid as `get_epsilon`'s, a little looser.

        Raises:
            ValueError: delta out of range.
            RuntimeError: nothing was made private yet.
        """
        mechanism, taken = self.mechanism, self._run().steps_taken
        _checks.delta(delta)
        if not taken:
            return 0.0
        part = mechanism.after(taken)
        asked = (part.steps, delta)
        if self._spent[0] != asked:  # under random sampling an answer takes seconds
            method = "auto" if part is mechanism else accounting.QUICK
            self._spent = asked, accounting.epsilon(part, delta=delta, method=method)
        return self._spent[1]

    def ledger(self, delta: float) -> dict[str, Any]:
        """All that the guarantee rests on, as plain data without any key.

        Raises:
            ValueError: delta out of range.
            RuntimeError: nothing was made private yet.
        """
        return ledger.entries(self.mechanism, self._run(), delta)

    def save_checkpoint(
        self, *, path: str | Path, module: nn.Module, optimizer: CorrelatedNoise, extra: dict[str, Any] | None = None
    ) -> None:
        """Write model, optimizer, noise and data order to one file, whole or not at all. It holds the keys.

        Of several processes all call it together; the first one writes, with its `extra`.

        Raises:
            ValueError: the optimizer isn't this engine's.
            OSError: the file can't be written; an earlier file of that name is still whole.
        """
        checkpoint.save(path, module=module, optimizer=self._own(optimizer), extra=extra)

    def load_checkpoint(self, *, path: str | Path, module: nn.Module, optimizer: CorrelatedNoise) -> dict[str, Any]:
        """Continue the run that `save_checkpoint` wrote, bit for bit; returns its `extra`.

        Raises:
            ValueError: missing, damaged or foreign file; another model, mechanism or data set.
        """
        return checkpoint.load(path, module=module, optimizer=self._own(optimizer))

    def _run(self) -> CorrelatedNoise:
        assert self._optimizer is not None
        return self._optimizer

    def _own(self, optimizer: CorrelatedNoise) -> CorrelatedNoise:
        if self._optimizer is None or optimizer is not self._optimizer:
            raise _checks.fail(
                "optimizer", type(optimizer).__name__, "isn't the one this engine returned", "pass that one"
            )
        return optimizer
