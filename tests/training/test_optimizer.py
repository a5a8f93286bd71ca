"""The private step against its definition, written as a loop over examples; and all the ways to get it wrong."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import bluegrad as bg
from oracles.training import CLIP, SIZE, dense_run, examples, flat, private_run, sgd, small_model

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

MODES = ("hooks", "functorch", "ghost")
# The twin forms N Z in float64, the stream in float32: releases of size 50 differ by 1e-5 at most.
TOLERANCE = 1e-5


def mechanism(strategy=None, epochs=2, multiplier=1.0):
    strategy = bg.lambda_cgd(8, 0.9) if strategy is None else strategy
    return bg.Mechanism(strategy, bg.FixedEpochs(strategy.steps, epochs), multiplier)


def poisson(steps=20, rate=0.05):
    return bg.Mechanism(bg.identity(steps), bg.Poisson(steps, rate), 1.0)


MECHANISMS = {
    "identity": mechanism(bg.identity(8)),
    "lambda_cgd": mechanism(),
    "nu_dp_ftrl": mechanism(bg.nu_dp_ftrl(20, 0.05), 5),
    "toeplitz": mechanism(bg.toeplitz([1.0, 0.5, 0.2], 8)),
    "poisson": poisson(),
}


def batches(run, steps=None):
    return [run.optimizer.batches.batch(t) for t in range(run.engine.mechanism.steps if steps is None else steps)]


def twin(run, steps=None, **options):
    return dense_run(
        run.engine.mechanism, batches(run, steps), expected=run.optimizer.expected_batch_size, **options
    )  # fmt: skip


def gap(one, other):
    return float((one - other).abs().max())


def first(run):
    return next(iter(run.loader))


class TestDefinition:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_one_step(self, mode, reduction):
        # 25 examples in 4 batches: six or seven at a time, 6.25 expected
        data = examples(25)
        run = private_run(mechanism(), mode=mode, reduction=reduction, data=data, batch_size=7)
        assert run.optimizer.expected_batch_size == 6.25 and len(batches(run)[0]) == 6
        expected = twin(run, 1, reduction=reduction, data=data)
        run.train(1)
        assert gap(run.weights(), expected.weights()) < TOLERANCE
        wrong = {
            "noise of the other sign": {"noise_factor": -1.0},
            "noise 1 % too small": {"noise_factor": 0.99},
            "no noise": {"noise_factor": 0.0},
            "clip norm 1 % too large": {"clip": 1.01 * CLIP},
            "no clipping": {"clip": 1e9},
            "another key": {"key": bg.NoiseKey(bytes(16))},
            "another batch": {"data": TensorDataset(*(x.flip(0) for x in data.tensors))},
            "the other reduction": {"reduction": {"mean": "sum", "sum": "mean"}[reduction]},
        }
        for what, change in wrong.items():
            other = twin(run, 1, **{"reduction": reduction, "data": data, **change})
            assert gap(run.weights(), other.weights()) > 10 * TOLERANCE, what
        if reduction == "mean":
            realised = dense_run(run.engine.mechanism, batches(run, 1), expected=6.0, data=data)
            assert gap(run.weights(), realised.weights()) > 10 * TOLERANCE

    def test_some_examples_are_clipped_and_some_are_not(self):
        x, y = examples().tensors
        model = small_model()
        norms = []
        for i in range(SIZE):
            model.zero_grad()
            nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            norms.append(float(flat(p.grad for p in model.parameters()).norm()))
        assert 3 <= sum(norm < CLIP for norm in norms) <= SIZE - 3

    @pytest.mark.parametrize(
        "name, mode",
        [(n, m) for n in MECHANISMS for m in MODES if (n, m) != ("poisson", "functorch")],  # refused, see test_engine
    )
    def test_whole_runs(self, name, mode):
        run = private_run(MECHANISMS[name], mode=mode)
        expected = twin(run)
        run.train()
        assert len(expected.trail) == run.optimizer.steps_taken == run.engine.mechanism.steps
        assert gap(run.weights(), expected.weights()) < 10 * TOLERANCE

    @pytest.mark.parametrize("mode", MODES)
    def test_float32_parameters(self, mode):
        data = examples(dtype=torch.float32)
        run = private_run(mechanism(), mode=mode, data=data, model=small_model(dtype=torch.float32)).train()
        expected = twin(run, data=data, model=small_model(dtype=torch.float32))
        assert gap(run.weights(), expected.weights()) < 1e-4

    def test_the_noise_is_correlated_in_the_weights_too(self):
        # Units that aren't finite contribute nothing, so the weights move by the sum of noise alone: for lambda = 0.9
        # its variance is 1 + 7 * 0.1^2, for DP-SGD 8, in units of the scale. Of 177 weights the ratio 0.366 is known
        # to 8 %.
        data = examples()
        data.tensors[0][:] = np.nan
        moved = []
        for name in ("lambda_cgd", "identity"):
            run = private_run(MECHANISMS[name], data=data).train()
            shift = run.weights() - flat(small_model().parameters())
            moved.append(float(shift.norm()) / run.engine.mechanism.sensitivity)
        assert 0.25 < moved[0] / moved[1] < 0.5

    def test_an_unused_layer_gets_noise_alone(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = small_model(), small_model(1)

            def forward(self, x):
                return self.used(x)

        run = private_run(mechanism(), model=Two())
        run.train(1)
        model = Two()
        stream = bg.NoiseStream(run.engine.mechanism, list(model.parameters()), clip_norm=CLIP, key=run_key(run))
        noise = stream.next()[4:]
        for p, before, z in zip(list(run.module.parameters())[4:], model.unused.parameters(), noise):
            torch.testing.assert_close(p.detach(), before.detach() - 0.3 * z / 6, rtol=1e-6, atol=1e-7)

    def test_a_layer_used_twice(self):
        class Again(nn.Module):
            def __init__(self):
                super().__init__()
                with torch.random.fork_rng():
                    torch.manual_seed(3)
                    self.twice, self.last = nn.Linear(36, 36).double(), nn.Linear(36, 3).double()

            def forward(self, x):
                return self.last(torch.tanh(self.twice(torch.tanh(self.twice(x.flatten(1))))))

        for mode in ("hooks", "functorch"):
            run = private_run(mechanism(), mode=mode, model=Again())
            assert gap(run.train().weights(), twin(run, model=Again()).weights()) < 10 * TOLERANCE
        with pytest.raises(NotImplementedError, match="tying"):  # norms of the uses don't add up to the sum's
            private_run(mechanism(), mode="ghost", model=Again()).train()


def run_key(run):
    return bg.NoiseKey.from_hex(run.optimizer.state_dict()["bluegrad"]["noise"]["key"])


class TestPhysicalBatches:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("largest", [1, 2, 4, 6, 100])
    def test_agree_with_whole_ones(self, mode, largest):
        run = private_run(mechanism(), mode=mode, max_physical_batch_size=largest)
        sizes = []
        run.module.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        assert gap(run.train().weights(), twin(run).weights()) < 10 * TOLERANCE
        assert max(sizes) <= largest and sum(sizes) == 2 * SIZE
        assert run.optimizer.calls == len(sizes) and run.optimizer.steps_taken == 8

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    @pytest.mark.parametrize("largest", [1, 3])
    def test_of_poisson_sampling(self, mode, largest):
        run = private_run(poisson(40, 0.1), mode=mode, batch_size=2, max_physical_batch_size=largest)
        assert any(len(b) == 0 for b in batches(run)) and any(len(b) > largest for b in batches(run))
        assert gap(run.train().weights(), twin(run).weights()) < 10 * TOLERANCE

    @pytest.mark.parametrize("mode", MODES)
    def test_with_batch_memory_manager(self, mode):
        run = private_run(mechanism(), mode=mode)
        with BatchMemoryManager(
            data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer
        ) as loader:  # fmt: skip
            run.train(loader=loader)
        assert gap(run.weights(), twin(run).weights()) < 10 * TOLERANCE
        assert run.optimizer.calls == 16 and run.optimizer.steps_taken == 8

    def test_left_in_the_middle_of_a_logical_batch(self):
        run = private_run(mechanism(), max_physical_batch_size=2)
        for handed, (x, y) in enumerate(run.loader):
            if handed == 4:  # one of three parts of the second batch
                break
            run.backward(x, y)
            run.optimizer.step()
            run.optimizer.zero_grad()
        assert run.optimizer.steps_taken == 1 and run.optimizer.accumulating
        assert gap(run.train().weights(), twin(run).weights()) < 10 * TOLERANCE


def replay(make, schedule, releases):
    """The same optimizer without wrapping, fed with the same releases."""
    model = small_model()
    optimizer = make(model.parameters())
    plan = schedule(optimizer) if schedule else None
    for release in releases:
        for p, g in zip(model.parameters(), release):
            p.grad = g.clone()
        optimizer.step()
        if plan is not None:
            plan.step()
    return flat(model.parameters()), optimizer


def recorded(run):
    releases = []
    run.optimizer.attach_step_hook(lambda o: releases.append([p.grad.clone() for p in o.params]))
    return releases


OPTIMIZERS = {
    "SGD, momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "SGD, Nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, maximize": lambda ps: torch.optim.SGD(ps, lr=0.1, maximize=True, dampening=0.5, momentum=0.5),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "Adam, amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True, weight_decay=0.1),
    "groups": lambda ps: torch.optim.SGD(
        [{"params": p, "lr": 0.1 / i} for i, p in enumerate(ps, start=1)], lr=0.1, momentum=0.5
    ),
    # every class that torch has, and will have, but those that can't: see test_no_optimizer_escapes
    **{
        name: (lambda ps, kind=kind: kind(ps, lr=0.01))
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and name not in {"Optimizer", "LBFGS", "SparseAdam", "Muon"}
    },
}
SCHEDULES = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=10),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


class TestPostProcessing:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_any_optimizer_sees_the_releases_and_nothing_else(self, name):
        run = private_run(mechanism(), make=OPTIMIZERS[name])
        releases = recorded(run)
        weights, _ = replay(OPTIMIZERS[name], None, (run.train(), releases)[1])
        assert len(releases) == 8
        assert torch.equal(run.weights(), weights)  # to the bit
        wrong, _ = replay(OPTIMIZERS[name], None, releases[::-1])
        assert not torch.equal(run.weights(), wrong)

    def test_no_optimizer_escapes(self):
        # LBFGS is refused by the engine, SparseAdam wants sparse gradients and Muon takes matrices only
        kinds = {
            n for n, k in vars(torch.optim).items() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)
        }
        assert {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam"} <= kinds & set(OPTIMIZERS)

    @pytest.mark.parametrize("name", SCHEDULES)
    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_schedules(self, name, mode):
        make = OPTIMIZERS["SGD, momentum"]
        run = private_run(mechanism(), mode=mode, make=make)
        releases = recorded(run)
        run.schedule = SCHEDULES[name](run.optimizer)
        run.train()
        weights, plain = replay(make, SCHEDULES[name], releases)
        assert torch.equal(run.weights(), weights)
        assert [g["lr"] for g in run.optimizer.param_groups] == [g["lr"] for g in plain.param_groups]
        assert not torch.equal(weights, replay(make, None, releases)[0])

    def test_full_runs_with_momentum_and_schedule_equal_the_twin(self):
        make, schedule = OPTIMIZERS["SGD, Nesterov"], SCHEDULES["OneCycleLR"]
        run = private_run(mechanism(), make=make)
        run.schedule = schedule(run.optimizer)
        assert gap(run.train().weights(), twin(run, make=make, schedule=schedule).weights()) < 10 * TOLERANCE

    def test_one_hook_call_a_release(self):
        run = private_run(mechanism(), max_physical_batch_size=2)
        releases = recorded(run)
        run.train()
        assert len(releases) == 8

    def test_a_closure_is_called_once(self):
        run = private_run(mechanism())
        x, y = first(run)
        calls = []

        def closure():
            calls.append(1)
            run.backward(x, y)

        run.optimizer.step(closure)
        assert len(calls) == 1 and gap(run.weights(), twin(run, 1).weights()) < TOLERANCE


class TestHorizon:
    @pytest.mark.parametrize("mode", MODES)
    def test_exactly_n_steps(self, mode):
        run = private_run(mechanism(), mode=mode)
        run.train()
        before = run.weights()
        assert run.optimizer.steps_taken == 8
        with pytest.raises(ValueError, match="step=9: all steps=8 of the mechanism have been taken"):
            first(run)
        x, y = examples(6).tensors
        run.backward(x, y)
        with pytest.raises(ValueError, match="step=9: the mechanism ends after steps=8"):
            run.optimizer.step()
        assert torch.equal(run.weights(), before)

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_empty_batches_count(self, mode):
        run = private_run(poisson(), mode=mode)
        empty = sum(len(b) == 0 for b in batches(run))
        assert empty >= 3
        releases = recorded(run)
        handed = [len(x) for x, y in iterate(run)]
        assert handed == [len(b) for b in batches(run)] and run.optimizer.steps_taken == 20
        assert len(releases) == 20
        # what is released for nobody is noise all the same
        at = handed.index(0)
        stream = bg.NoiseStream(
            run.engine.mechanism, list(small_model().parameters()), clip_norm=CLIP, key=run_key(run)
        )
        noise = [stream.next() for _ in range(at + 1)][at]
        for g, z in zip(releases[at], noise):
            torch.testing.assert_close(g, z / run.optimizer.expected_batch_size, rtol=1e-6, atol=0)


def iterate(run):
    """Train, and yield the batches."""
    for x, y in run.loader:
        run.backward(x, y)
        run.optimizer.step()
        run.optimizer.zero_grad()
        yield x, y


class TestNonfinite:
    SPOILED = (3, 7, 20)

    def spoil(self, *values):
        data = examples()
        for i, value in zip(self.SPOILED, values):
            data.tensors[0][i] = value
        return data

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("values", [(np.nan, np.inf, -np.inf), (np.nan,), (1e308, np.nan, np.inf)])
    def test_contribute_nothing_and_are_counted(self, mode, values):
        data = self.spoil(*values)
        run = private_run(mechanism(), mode=mode, data=data).train()
        expected = twin(run, data=data)
        assert torch.isfinite(run.weights()).all()
        assert gap(run.weights(), expected.weights()) < 10 * TOLERANCE
        assert run.optimizer.nonfinite == expected.left_out > 0
        assert gap(run.weights(), twin(run).weights()) > 100 * TOLERANCE  # the data without the spoiled ones' loss

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    @pytest.mark.parametrize("largest", [1, 2])
    def test_in_physical_batches(self, mode, largest):
        data = self.spoil(np.nan, np.inf)
        run = private_run(mechanism(), mode=mode, data=data, max_physical_batch_size=largest).train()
        assert run.optimizer.nonfinite == 4
        assert gap(run.weights(), twin(run, data=data).weights()) < 10 * TOLERANCE

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_nobody_finite_is_noise_alone(self, mode, reduction):
        data = examples()
        data.tensors[0][:] = np.nan
        run = private_run(mechanism(), mode=mode, reduction=reduction, data=data).train()
        assert run.optimizer.nonfinite == 2 * SIZE
        assert gap(run.weights(), twin(run, data=data, reduction=reduction).weights()) < 10 * TOLERANCE

    @pytest.mark.parametrize("mode", MODES)
    def test_gradients_whose_norm_overflows(self, mode):
        # every entry is finite, the norm isn't in float32; min(1, clip / inf) = 0 would hide it
        data = examples(dtype=torch.float32)
        linear = lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3))  # noqa: E731
        data.tensors[0][3] = 3e37
        torch.manual_seed(0)
        run = private_run(mechanism(), mode=mode, data=data, model=linear()).train()
        assert torch.isfinite(run.weights()).all()


class TestMisuse:
    def assert_refused(self, run, match):
        before, steps = run.weights(), run.optimizer.steps_taken
        with pytest.raises(RuntimeError, match=match):
            run.optimizer.step()
        assert torch.equal(run.weights(), before) and run.optimizer.steps_taken == steps

    @pytest.mark.parametrize("mode", MODES)
    def test_a_foreign_loader(self, mode):
        run = private_run(mechanism(), mode=mode)
        x, y = next(iter(DataLoader(examples(), batch_size=6)))
        run.backward(x, y)
        self.assert_refused(run, r"step=1: no batch of this step was drawn; train on the data loader that the engine")

    @pytest.mark.parametrize("mode", MODES)
    def test_a_foreign_batch_of_another_size(self, mode):
        run = private_run(mechanism(), mode=mode)
        first(run)
        run.backward(*examples(7).tensors)
        self.assert_refused(run, r"step=1: 7 per-sample gradients, but its batch has 6 examples")

    @pytest.mark.parametrize("mode", MODES)
    def test_a_foreign_batch_of_the_right_size_is_a_documented_limit(self, mode):
        # a genuine batch that was moved or augmented consists of new tensors too
        run = private_run(mechanism(), mode=mode)
        x, y = first(run)
        run.backward(x.clone().float().double() + 1.0, y.clone())
        run.optimizer.step()
        assert run.optimizer.steps_taken == 1
        for documented in (bg.PrivacyEngine, type(run.loader)):
            assert "the guarantee" in " ".join(documented.__doc__.split())

    @pytest.mark.parametrize("mode", MODES)
    def test_two_backward_passes_a_batch(self, mode):
        run = private_run(mechanism(), mode=mode)
        x, y = first(run)
        run.backward(x, y)
        run.backward(x, y)
        self.assert_refused(run, r"step=1: 12 per-sample gradients, but its batch has 6")

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_a_refused_step_leaves_nothing_behind(self, mode):
        # or else its sum would be part of the next release, whose count is right
        run = private_run(mechanism(), mode=mode)
        x, y = first(run)
        run.backward(x, y)
        run.backward(x, y)
        self.assert_refused(run, "12 per-sample gradients")
        run.backward(x, y)
        run.optimizer.step()
        assert gap(run.weights(), twin(run, 1).weights()) < TOLERANCE

    def test_a_plain_loss_in_ghost_mode(self):
        run = private_run(mechanism(), mode="ghost")
        x, y = first(run)
        nn.functional.cross_entropy(run.module(x), y).backward()
        self.assert_refused(run, "step=1: gradients of a loss other than the engine's criterion")

    def test_a_second_plain_loss_in_ghost_mode(self):
        # its gradient isn't clipped by anything
        run = private_run(mechanism(), mode="ghost")
        x, y = first(run)
        run.backward(x, y)
        (1000 * run.module(x).pow(2).mean()).backward()
        try:
            run.optimizer.step()
        except RuntimeError:
            return
        assert gap(run.weights(), twin(run, 1).weights()) < TOLERANCE, "an unclipped gradient was released"

    @pytest.mark.parametrize("mode", MODES)
    def test_a_step_without_backward(self, mode):
        run = private_run(mechanism(), mode=mode)
        first(run)
        self.assert_refused(run, "step=1: 0 per-sample gradients")

    @pytest.mark.parametrize("mode", MODES)
    def test_a_second_step_a_batch(self, mode):
        run = private_run(mechanism(), mode=mode)
        x, y = first(run)
        run.backward(x, y)
        run.optimizer.step()
        self.assert_refused(run, "step=2: ")

    @pytest.mark.parametrize("largest", [None, 2])
    def test_a_skipped_batch(self, largest):
        run = private_run(mechanism(), max_physical_batch_size=largest)
        iterator = iter(run.loader)
        next(iterator)
        with pytest.raises(RuntimeError, match=r"1 batches handed out but 0 calls of optimizer\.step"):
            next(iterator)

    def test_a_skipped_empty_batch(self):
        # as Opacus' users do: `if len(x) == 0: continue`
        run = private_run(poisson())
        with pytest.raises(RuntimeError, match="empty ones included"):
            for x, y in run.loader:
                if len(x):
                    run.backward(x, y)
                    run.optimizer.step()

    def test_a_batch_skipped_under_batch_memory_manager(self):
        # the next batch in its place would come back one step short of the separation that is accounted
        run = private_run(mechanism())
        joined = {}
        refused = False
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=6, optimizer=run.optimizer) as loader:
            try:
                for _ in range(2):
                    for i, (x, y) in enumerate(loader):
                        if i == 1:
                            continue
                        run.backward(x, y)
                        run.optimizer.step()
                        run.optimizer.zero_grad()
                        for brightness in x.abs().amax((1, 2, 3)).tolist():
                            joined.setdefault(brightness, []).append(run.optimizer.steps_taken)
            except RuntimeError:
                refused = True
        assert refused or all(b - a >= 4 for at in joined.values() for a, b in pairwise(at)), joined

    @pytest.mark.parametrize(
        "name, value",
        [("max_grad_norm", 2.9), ("noise_multiplier", 0.9), ("expected_batch_size", 7), ("loss_reduction", "sum")],
    )
    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_a_setting_changed_in_mid_run(self, mode, name, value):
        run = private_run(mechanism(), mode=mode).train(2)
        x, y = first(run)
        setattr(run.optimizer, name, value)
        run.backward(x, y)
        self.assert_refused(run, f"{name}={value!r}: was .* one joint mechanism can't change")

    @pytest.mark.parametrize("mode", ["hooks", "functorch"])
    def test_a_layer_frozen_in_mid_run(self, mode):
        run = private_run(mechanism(), mode=mode).train(2)
        next(run.module.parameters()).requires_grad_(False)
        x, y = first(run)
        run.backward(x, y)
        self.assert_refused(run, "parameters: 3 trainable of the 4")

    def test_a_layer_frozen_in_mid_run_of_ghost_clipping(self):
        run = private_run(mechanism(), mode="ghost").train(2)
        next(run.module.parameters()).requires_grad_(False)
        self.assert_refused(run, "parameters: 3 trainable of the 4")

    def test_a_layer_thawed_in_mid_run(self):
        model = small_model()
        model[0].weight.requires_grad_(False)
        run = private_run(mechanism(), model=model).train(2)
        model[0].weight.requires_grad_(True)
        self.assert_refused(run, "parameters: 4 trainable of the 3")

    def test_a_group_added_in_mid_run(self):
        run = private_run(mechanism()).train(2)
        run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        self.assert_refused(run, "parameters: 5 trainable of the 4")

    def test_a_frozen_layer_stays_as_it_is(self):
        model = small_model()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        private_run(mechanism(), model=model).train()
        assert torch.equal(model[0].weight, before)

    @pytest.mark.parametrize("combine", [lambda a: 2 * a, lambda a: a * 2, lambda a: a / 2, lambda a: a + a,
                                         lambda a: 1 + a, lambda a: a - 1, lambda a: 1 - a, lambda a: -a])  # fmt: skip
    def test_a_ghost_loss_that_is_scaled(self, combine):
        run = private_run(mechanism(), mode="ghost")
        x, y = first(run)
        with pytest.raises(TypeError, match="can't be scaled or combined"):
            combine(run.criterion(run.module(x), y))

    def test_a_ghost_loss_with_a_row_a_pixel(self):
        run = private_run(mechanism(), mode="ghost")
        with pytest.raises(ValueError, match=r"loss\.shape=\(6, 5\): must be one loss an example"):
            run.criterion(torch.zeros(6, 3, 5), torch.zeros(6, 5, dtype=torch.int64))


class TestCopies:
    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_fail_clearly(self, mode):
        run = private_run(mechanism(), mode=mode).train(1)
        with pytest.raises(TypeError, match="can't be copied: two copies would draw the same noise"):
            copy.deepcopy(run.optimizer)
        with pytest.raises(TypeError, match="can't be pickled: it holds the noise key"):
            pickle.dumps(run.optimizer)
        with pytest.raises(TypeError):
            copy.copy(run.optimizer)

    def test_other_optimizers_are_unharmed(self):
        before = (torch.optim.SGD.step, torch.optim.Optimizer.__reduce__, torch.optim.Optimizer.__getstate__)
        run = private_run(mechanism()).train(2)
        assert before == (torch.optim.SGD.step, torch.optim.Optimizer.__reduce__, torch.optim.Optimizer.__getstate__)
        model = small_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
            assert type(other) is torch.optim.SGD and other.param_groups[0]["momentum"] == 0.9
        x, y = examples().tensors
        start = flat(model.parameters())
        nn.functional.cross_entropy(model(x), y).backward()
        gradient = flat(p.grad for p in model.parameters())
        plain.step()
        torch.testing.assert_close(flat(model.parameters()), start - 0.1 * gradient)
        copy.deepcopy(run.optimizer.original_optimizer)  # the wrapped one is an ordinary one too

    def test_the_key_is_not_shown(self):
        run = private_run(mechanism())
        for thing in (run.optimizer, run.loader, run.engine, run.optimizer.stream, run.optimizer.batches):
            assert run_key(run).hex()[:8] not in repr(thing) + str(thing)


OTHERS = {
    "multiplier": {"mechanism": mechanism(multiplier=1.1)},
    "strategy": {"mechanism": mechanism(bg.lambda_cgd(8, 0.8))},
    "clip norm": {"clip": 2.9},
    "examples": {"data": examples(25), "batch_size": 7},
    "groups": {"make": OPTIMIZERS["groups"]},
}


class TestState:
    def test_holds_the_wrapped_optimizers_state(self):
        run = private_run(mechanism(), make=OPTIMIZERS["SGD, momentum"]).train(2)
        state = run.optimizer.state_dict()
        plain = run.optimizer.original_optimizer.state_dict()
        assert set(state) == {*plain, "bluegrad"}
        assert state["param_groups"] == plain["param_groups"]

    @pytest.mark.parametrize("lost", ["noise", "batches", "nonfinite", "format"])
    def test_without_a_part_it_is_refused(self, lost):
        run = private_run(mechanism()).train(2)
        state = run.optimizer.state_dict()
        del state["bluegrad"][lost]
        with pytest.raises(ValueError):
            private_run(mechanism()).optimizer.load_state_dict(state)

    def test_a_plain_optimizers_state_is_refused(self):
        with pytest.raises(ValueError, match="holds no bluegrad-optimizer-1 state: without the noise's state"):
            private_run(mechanism()).optimizer.load_state_dict(sgd(small_model().parameters()).state_dict())

    @pytest.mark.parametrize("name", OTHERS)
    def test_another_runs_state_is_refused_and_changes_nothing(self, name):
        # a half-loaded state would be the saved run's noise on another run's gradients
        state = private_run(mechanism()).train(3).optimizer.state_dict()
        keys = {"key": bg.NoiseKey.generate(), "sampling_key": bg.NoiseKey.generate()}
        other = private_run(**{"mechanism": mechanism(), **OTHERS[name], **keys})
        before = str(other.optimizer.state_dict())
        with pytest.raises(ValueError):
            other.optimizer.load_state_dict(state)
        assert str(other.optimizer.state_dict()) == before
