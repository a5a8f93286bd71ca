"""Ghost clipping against hooks, where layers are used in some batches and not in others; and what nothing clips."""

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM
from torch import nn
from torch.utils.data import TensorDataset

import bluegrad as bg
from oracles.training import SIZE, dense_run, examples, private_run, sgd, small_model

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

TOLERANCE = 1e-5


def mechanism(steps=8, epochs=2):
    return bg.Mechanism(bg.lambda_cgd(steps, 0.9), bg.FixedEpochs(steps, epochs), 1.0)


class Branches(nn.Module):
    """Layers of which every call takes those whose turn it is; `never` has none."""

    def __init__(self, turns, custom=False):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.first, self.second = nn.Linear(36, 5).double(), Own(36, 5) if custom else nn.Linear(36, 5).double()
            self.third = nn.Linear(36, 5, bias=False).double()
            self.last, self.never = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
        self.turns, self.calls = turns, 0

    def forward(self, x):
        turn = self.turns[self.calls % len(self.turns)]
        self.calls += 1
        layers = {"a": self.first, "b": self.second, "c": self.third}
        hidden = sum((torch.tanh(layers[name](x.flatten(1))) for name in turn), torch.zeros(()))
        return self.last(hidden + x.new_zeros(len(x), 5))


class Own(nn.Module):
    """A layer of the user's, which reads its parameter twice."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.float64) / 6)

    def forward(self, x):
        return x @ self.weight.T + 0.1 * torch.sin(x @ self.weight.T)


def gap(one, other):
    return float((one.weights() - other.weights()).abs().max())


class TestUnusedLayers:
    @pytest.mark.parametrize("custom", [False, True])
    @pytest.mark.parametrize(
        "turns",
        [("abc", "a"), ("a", "abc"), ("ab", "bc", "ca"), ("a", "b", "c", ""), ("", "abc"), ("abc", "", "", "b"), ("",)],
    )
    @pytest.mark.parametrize("steps", [1, 2, 3, 8])
    def test_ghost_is_hooks(self, turns, custom, steps):
        runs = [private_run(mechanism(), mode=mode, model=Branches(turns, custom)) for mode in ("hooks", "ghost")]
        hooks, ghost = (run.train(steps) for run in runs)
        assert gap(hooks, ghost) < TOLERANCE

    def test_an_older_norm_would_show(self):
        # the layer's share of the norm is large, so that clipping by it once more can't be missed
        hooks, same, other = (
            private_run(mechanism(), mode=mode, model=Branches(turns)).train(2)
            for mode, turns in (("hooks", ("abc", "a")), ("ghost", ("abc", "a")), ("ghost", ("abc", "abc")))
        )
        assert gap(hooks, same) < TOLERANCE and gap(hooks, other) > 100 * TOLERANCE

    @pytest.mark.parametrize("largest", [1, 4])
    def test_in_physical_batches(self, largest):
        runs = [
            private_run(mechanism(), mode=mode, model=Branches(("ab", "c", "b")), max_physical_batch_size=largest)
            for mode in ("hooks", "ghost")
        ]
        assert gap(*(run.train() for run in runs)) < TOLERANCE

    def test_with_units_that_are_not_finite(self):
        data = examples()
        data.tensors[0][3] = float("nan")
        # a second pass without the bad unit calls the model again: the same branch each time
        runs = [private_run(mechanism(), mode=mode, model=Branches(("ab",)), data=data) for mode in ("hooks", "ghost")]
        assert gap(*(run.train() for run in runs)) < TOLERANCE
        assert [run.optimizer.nonfinite for run in runs] == [2, 2]

    def test_empty_batches(self):
        law = bg.Mechanism(bg.identity(20), bg.Poisson(20, 0.05), 1.0)
        runs = [private_run(law, mode=mode, model=Branches(("ab", "c", ""))) for mode in ("hooks", "ghost")]
        assert any(len(runs[0].optimizer.batches.batch(t)) == 0 for t in range(20))
        assert gap(*(run.train() for run in runs)) < TOLERANCE


class TestParametersOfTheOptimizer:
    @pytest.mark.parametrize("held", [slice(2, None), slice(0, 2), slice(1, 3)])
    @pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
    def test_only_these_are_clipped_and_released(self, mode, held):
        run = private_run(mechanism(), mode=mode, make=lambda ps: sgd(list(ps)[held])).train()
        frozen = small_model()
        for p in set(frozen.parameters()) - set(list(frozen.parameters())[held]):
            p.requires_grad_(False)
        other = private_run(
            mechanism(), mode="hooks", model=frozen, make=lambda ps: sgd([p for p in ps if p.requires_grad])
        ).train()
        assert gap(run, other) < TOLERANCE

    @pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
    def test_others_keep_no_gradients_of_units(self, mode):
        run = private_run(mechanism(), mode=mode, make=lambda ps: sgd(list(ps)[2:])).train()
        assert all(getattr(p, "grad_sample", None) is None for p in run.module.parameters())


class Functional(nn.Module):
    """A layer whose weight is also used, or only used, past its forward."""

    def __init__(self, calls):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.layer, self.last = nn.Linear(36, 36, bias=False).double(), nn.Linear(36, 3).double()
        self.last.requires_grad_(False)
        self.calls = calls

    def forward(self, x):
        x = x.flatten(1)
        called = 1e-3 * self.layer(x) if self.calls else 0.0
        return self.last(called + nn.functional.linear(x, self.layer.weight))


class TestUnseenGradients:
    @pytest.mark.parametrize("calls", [0, 1])
    def test_a_weight_used_past_its_layer(self, calls):
        # hooks see the layer's calls alone: the sum would exceed the clip norm without bound
        run = private_run(mechanism(), mode="ghost", model=Functional(calls))
        x, y = next(iter(run.loader))
        before = run.weights()
        with pytest.raises(
            RuntimeError, match=rf"step=1: parameter 'layer.weight' is used {calls + 1} times, {calls} "
        ):
            run.backward(x, y)
        assert torch.equal(run.weights(), before) and run.optimizer.steps_taken == 0
        assert all(p.grad is None for p in run.optimizer.params)

    def test_a_call_that_the_loss_does_not_use(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = Own(36, 3)

            def forward(self, x):
                self.layer(2 * x.flatten(1))
                return self.layer(x.flatten(1))

        run = private_run(mechanism(), mode="ghost", model=Twice())
        with pytest.raises(RuntimeError, match=r"parameter 'layer.weight' has a gradient whose norms weren't seen"):
            run.backward(*next(iter(run.loader)))
        assert all(p.grad is None and p.summed_grad is None for p in run.optimizer.params)

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_never_more_than_the_clip_norm_a_unit(self, mode):
        run = private_run(mechanism(), mode=mode, model=Branches(("ab", "c")), clip=1e-3)
        for _ in range(2):
            run.backward(*next(iter(run.loader)))
            run.optimizer.sum_clipped()
            total = torch.stack([p.summed_grad.norm() for p in run.optimizer.params]).norm()
            assert 0 < total <= 6 * 1e-3
            run.optimizer.discard_partial()


class Sequence(nn.Module):
    """Every kind of layer that Opacus has a rule for, once."""

    def __init__(self, kind):
        super().__init__()
        self.embed, self.kind = nn.Embedding(7, 8), kind
        self.layer = {
            "lstm": lambda: DPLSTM(8, 8, batch_first=True, num_layers=2),
            "gru": lambda: DPGRU(8, 8, batch_first=True, bidirectional=True),
            "conv1d": lambda: nn.Conv1d(8, 8, 2),
            "norms": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)),
            "group norm": lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.InstanceNorm1d(8, affine=True)),
        }[kind]()
        self.last = nn.Linear(16 if kind == "gru" else 8, 3)

    def forward(self, x):
        x = self.embed(x)
        if self.kind in ("conv1d", "group norm"):
            x = self.layer(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.last(x.mean(dim=1))


@pytest.mark.parametrize("kind", ["lstm", "gru", "conv1d", "norms", "group norm"])
def test_no_false_alarm(kind):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randint(7, (SIZE, 5), generator=generator), torch.randint(3, (SIZE,), generator=generator)
    )
    runs = []
    for mode in ("hooks", "ghost"):
        torch.manual_seed(0)
        runs.append(private_run(mechanism(), mode=mode, model=Sequence(kind), data=data).train())
    assert gap(*runs) < 1e-4


def test_hooks_are_the_definition_here_too():
    run = private_run(mechanism(), model=(model := Branches(("ab",))))
    expected = dense_run(
        run.engine.mechanism, [run.optimizer.batches.batch(t) for t in range(8)],
        expected=6.0, model=Used(Branches(("ab",))),
    )  # fmt: skip
    assert model is run.module._module
    assert float((run.train().weights() - expected.weights()).abs().max()) < 10 * TOLERANCE


class Used(nn.Module):
    """A model all of whose parameters join the graph, as torch.autograd.grad wants."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + 0.0 * sum(p.sum() for p in self.model.parameters())
