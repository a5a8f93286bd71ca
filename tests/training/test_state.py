"""Malformed optimizer states: every leaf spoiled in every way is refused with nothing changed, or loaded in full."""

import copy
import math

import numpy as np
import pytest
import torch

import bluegrad as bg
from oracles.training import CLIP, examples, private_run, sgd, small_model

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

GONE = object()


def mechanism(strategy=None, epochs=2):
    strategy = bg.lambda_cgd(8, 0.9) if strategy is None else strategy
    return bg.Mechanism(strategy, bg.FixedEpochs(strategy.steps, epochs), 1.0)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.9), amsgrad=True)


def groups(parameters):
    one, *others = parameters
    return torch.optim.AdamW([{"params": [one], "amsgrad": True}, {"params": others}], lr=0.01)


CASES = {
    "plain": {"mechanism": mechanism(), "make": sgd},
    "momentum": {"mechanism": mechanism(), "make": momentum},
    "recurrence": {"mechanism": mechanism(bg.toeplitz([1.0, 0.5, 0.2], 8)), "make": adam},
    "poisson": {"mechanism": bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.25), 1.0), "make": groups},
    "ghost": {"mechanism": mechanism(), "make": momentum, "mode": "ghost"},
    "adafactor": {"mechanism": mechanism(), "make": lambda ps: torch.optim.Adafactor(ps, lr=0.01)},
}


def start(name):
    fresh = {"key": bg.NoiseKey.generate(), "sampling_key": bg.NoiseKey.generate()}
    return private_run(**CASES[name], model=small_model(5), **fresh)


def paths(value, at=()):
    """Where something is in nested plain data, containers included."""
    if isinstance(value, (dict, list, tuple)):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in inside:
            yield (*at, name)
            yield from paths(part, (*at, name))


def spoiled(value, path, new):
    """The same data with another value there, or none."""
    name, *rest = path
    items = dict(value.items() if isinstance(value, dict) else enumerate(value))
    items[name] = spoiled(items[name], rest, new) if rest else new
    items = {k: v for k, v in items.items() if v is not GONE}
    return items if isinstance(value, dict) else type(value)(items.values())


def replacements(value):
    yield from (GONE, None, "text", -1, 2.5, math.nan, True, [], {}, [None], {"a": 1}, b"0", object())
    yield from (torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64), np.zeros(3), np.array(["bluegrad"]))
    if isinstance(value, torch.Tensor):
        yield from (value.unsqueeze(-1), value.flatten()[:-1], value.to_sparse(), value.numpy())
        for bad in (math.nan, math.inf):
            copied = value.clone()
            copied.view(-1)[-1:] = bad
            yield copied
    if isinstance(value, (list, tuple)):
        yield from ([*value, *value], [*value, None], list(value)[:-1])
    if isinstance(value, str):
        yield from (value[:-1], value + "0", value.upper() + "é")


def same(one, other):
    """Deep equality of plain data, NaN equal to itself; an integer equals the float that torch makes of it."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and equal_tensors(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other or str(one) == str(other) == "nan"


def equal_tensors(one, other):
    return one.shape == other.shape and torch.equal(one.nan_to_num(nan=7e7), other.nan_to_num(nan=7e7))


def everything(run):
    """All that loading may touch, by value."""
    optimizer = run.optimizer
    state = copy.deepcopy(optimizer.state_dict())
    return {"state": state, "weights": run.weights(), "issued": optimizer.batches.issued, "seen": optimizer._seen,
            "batch": optimizer.batches.batch(3).tolist()}  # fmt: skip


def identities(run):
    plain, stream = run.optimizer.original_optimizer, run.optimizer.stream
    return [id(x) for x in (plain.state, plain.param_groups, *plain.param_groups, stream._source, stream._key)]


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A case's name, its state after three steps, and a run that loads into itself."""
    run = start(request.param).train(3)
    return request.param, run.optimizer.state_dict()


def test_every_leaf_spoiled_in_every_way(case):
    name, state = case
    target = start(name).train(2)
    x, y = next(iter(target.loader))
    target.backward(x, y)  # in the middle of a step: its sums must stay too
    before, objects = everything(target), identities(target)
    refused = accepted = 0
    for path in paths(state):
        value = state
        for part in path:
            value = value[part]
        for new in replacements(value):
            if path[0] == "param_groups" and type(new) in (int, float) and math.isfinite(new):
                continue  # the range of an option is the optimizer's affair
            bad = spoiled(state, path, new)
            try:
                target.optimizer.load_state_dict(bad)
            except ValueError as error:
                assert "state" in str(error)
                assert identities(target) == objects, f"{path}: {new!r} left traces"
                refused += 1
                continue
            accepted += 1
            assert_loaded(target, bad, path, new)
            target = start(name).train(2)
            target.backward(*next(iter(target.loader)))
            before, objects = everything(target), identities(target)
        assert same(everything(target), before), f"{path} left traces"
    assert refused > 300 and accepted >= 2
    target.optimizer.step()  # and it goes on as if nothing had been
    assert target.optimizer.steps_taken == 3


def assert_loaded(run, state, path, new):
    """What was loaded is what the run holds, and it can go on."""
    own = run.optimizer.state_dict()
    assert same(own["bluegrad"], state["bluegrad"]), f"{path}: {new!r} half loaded"
    assert run.optimizer.steps_taken == state["bluegrad"]["noise"]["step"]
    run.optimizer.zero_grad()
    run.train(run.optimizer.steps_taken + 1)


def test_the_fuzz_reaches_every_kind_of_leaf():
    found = {path[-1] for name in CASES for path in paths(start(name).train(3).optimizer.state_dict())}
    assert {"format", "key", "step", "buffers", "shapes", "clip_norm", "mechanism", "participation", "size"} <= found
    assert {"nonfinite", "state", "param_groups", "params", "lr", "momentum_buffer", "exp_avg", "row_var"} <= found


@pytest.mark.parametrize("spoil", [None, [], 3, "state", torch.zeros(2)])
def test_what_is_no_dict_at_all(spoil):
    run = start("momentum").train(2)
    before = everything(run)
    with pytest.raises(ValueError, match="state_dict="):
        run.optimizer.load_state_dict(spoil)
    assert same(everything(run), before)


@pytest.mark.parametrize(
    "path, match",
    [
        (("bluegrad", "batches"), r"state_dict\['bluegrad'\]\['batches'\]: state='NoneType'.*isn't a state of batches"),
        (("bluegrad", "noise"), r"state_dict\['bluegrad'\]\['noise'\]: state='NoneType'"),
        (("bluegrad", "noise", "step"), r"\['noise'\]: state\['step'\]=None: must be an integer"),
        (("bluegrad", "batches", "size"), r"\['batches'\]: state\['size'\]=None: must equal 24"),
        (("bluegrad", "nonfinite"), "nonfinite=None: must be an integer"),
        (("param_groups", 0, "lr"), r"param_groups\[0\]\['lr'\]=None: is of another kind"),
        (("state", 0, "momentum_buffer"), r"state\[0\]\['momentum_buffer'\]='NoneType': must be a dense tensor"),
    ],
)
def test_messages_name_what_is_wrong(path, match):
    run = start("momentum").train(2)
    with pytest.raises(ValueError, match=match):
        run.optimizer.load_state_dict(spoiled(run.optimizer.state_dict(), path, None))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("leaf, row", [(0, 0), (1, 0), (1, 1)])
def test_recurrence_buffers_that_are_not_finite(bad, leaf, row):
    # the recurrence would keep it for ever
    like = [torch.zeros(3), torch.zeros(2)]
    m = mechanism(bg.toeplitz([1.0, 0.5, 0.2], 8))
    stream = bg.NoiseStream(m, like, clip_norm=CLIP, key=bg.NoiseKey.generate())
    for _ in range(3):
        stream.next()
    state = stream.state_dict()
    state["buffers"][leaf][row][-1] = bad
    other = bg.NoiseStream(m, like, clip_norm=CLIP, key=bg.NoiseKey.generate())
    before = other.state_dict()
    with pytest.raises(ValueError, match=rf"state\['buffers'\]\[{leaf}\]='NaN or infinity': must be finite"):
        other.load_state_dict(state)
    assert same(other.state_dict(), before)


def test_an_optimizer_of_someone_else_keeps_what_it_likes():
    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "name": "own"})

        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("matrix", p.new_ones(p.shape[0], p.shape[0]))
                    self.state[p]["calls"] = self.state[p].get("calls", 0) + 1
                    p.data.add_(p.grad, alpha=-group["lr"])
            self.state["all"] = {"steps": 3}

    first = private_run(mechanism(), make=Own).train(3)
    second = private_run(mechanism(), make=Own)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert same(second.optimizer.state_dict(), first.optimizer.state_dict())


KINDS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in {"Optimizer", "LBFGS", "SparseAdam", "Muon"}  # as in test_optimizer
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_every_optimizer_of_torch_takes_its_own_state(name, steps):
    def run(seed):  # torch itself loads float32 scalars as the parameters' dtype
        model, data = small_model(seed, dtype=torch.float32), examples(dtype=torch.float32)
        return private_run(mechanism(), make=lambda ps: KINDS[name](ps, lr=0.01), model=model, data=data)

    whole, first, second = run(0).train(5), run(0).train(steps), run(5).train(2)
    second.module.load_state_dict(first.module.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    assert same(second.optimizer.state_dict(), first.optimizer.state_dict())
    assert torch.equal(second.train(5).weights(), whole.weights())


def test_options_that_schedules_change_are_loaded():
    def two(ps):
        one, *others = ps
        return torch.optim.SGD(
            [{"params": [one], "momentum": 0.0}, {"params": others, "lr": 0.2}], lr=0.1, momentum=0.9
        )

    first, second = (private_run(mechanism(), make=two) for _ in range(2))
    first.train(2)
    for group in first.optimizer.param_groups:
        group["lr"], group["initial_lr"] = torch.tensor(0.01), 0.5
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert same(second.optimizer.state_dict(), first.optimizer.state_dict())
    assert second.train(3).optimizer.steps_taken == 3
