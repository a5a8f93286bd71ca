"""Checkpoints: resumed runs are the uninterrupted ones to the bit, and files are whole, private and checked."""

import errno
import os
import pickle
import random
import stat
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

import bluegrad as bg
from bluegrad.training import checkpoint, generators, loader
from oracles.training import examples, private_run, small_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    # two workers on a machine with one core; forks of a process that has threads, in Python 3.12
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def mechanism(strategy=None, epochs=2):
    strategy = bg.lambda_cgd(8, 0.9) if strategy is None else strategy
    return bg.Mechanism(strategy, bg.FixedEpochs(strategy.steps, epochs), 1.0)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


def one_cycle(optimizer):
    steps = optimizer.stream.mechanism.steps
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=steps + 1)


class Noisy(Dataset):
    """Examples that are augmented at random, by the generator of whichever process loads them."""

    def __init__(self):
        self.plain = examples()

    def __len__(self):
        return len(self.plain)

    def __getitem__(self, i):
        x, y = self.plain[i]
        return x + torch.randn(x.shape, dtype=x.dtype), y


class Shaken(Noisy):
    """The same by the global generators of torch, Python and NumPy."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + random.gauss(0.0, 1.0) + np.random.normal(), y  # noqa: NPY002 - the global state is the point


@dataclass
class Case:
    """A way to run: everything but what a checkpoint must restore."""

    mechanism: bg.Mechanism
    dropout: float = 0.0
    schedule: bool = False
    options: tuple = ()

    def start(self, *, fresh):
        """The run; a fresh one has other weights, keys and global seeds, which loading must replace."""
        seed = 99 if fresh else 1
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)  # noqa: NPY002 - the global state is the point
        keys = {"key": bg.NoiseKey.generate(), "sampling_key": bg.NoiseKey.generate()} if fresh else {}
        options = {"make": momentum, **dict(self.options), **keys}
        run = private_run(self.mechanism, model=small_model(7 if fresh else 0, dropout=self.dropout), **options)
        if self.schedule:
            run.schedule = one_cycle(run.optimizer)
        return run


CASES = {
    "lambda_cgd": Case(mechanism()),
    "nu_dp_ftrl": Case(mechanism(bg.nu_dp_ftrl(20, 0.05), 5)),
    "toeplitz": Case(mechanism(bg.toeplitz([1.0, 0.5, 0.2], 8))),
    "poisson": Case(bg.Mechanism(bg.identity(12), bg.Poisson(12, 0.2), 1.0)),
    "min separation": Case(bg.Mechanism(bg.lambda_cgd(9, 0.5), bg.MinSeparation(9, 4, 3), 1.0)),
    "dropout": Case(mechanism(), dropout=0.5),
    "schedule": Case(mechanism(), schedule=True),
    "adam": Case(mechanism(), options=(("make", lambda ps: torch.optim.Adam(ps, lr=0.05)),)),
    "ghost": Case(mechanism(), options=(("mode", "ghost"),)),
    "ghost, dropout": Case(mechanism(), dropout=0.5, options=(("mode", "ghost"),)),
    "functorch": Case(mechanism(), options=(("mode", "functorch"),)),
    "physical batches": Case(mechanism(), options=(("max_physical_batch_size", 2),)),
    "augmentation": Case(mechanism(), options=(("data", Noisy()),)),
    "augmentation by three generators": Case(mechanism(), dropout=0.5, options=(("data", Shaken()),)),
    "two workers": Case(mechanism(), dropout=0.5, schedule=True, options=(("workers", 2),)),
    "two workers, toeplitz": Case(mechanism(bg.toeplitz([1.0, 0.5], 8)), options=(("workers", 2),)),
    "two workers, augmentation": Case(mechanism(), dropout=0.5, options=(("workers", 2), ("data", Shaken()))),
    "two workers, augmentation, physical batches": Case(
        mechanism(), options=(("workers", 2), ("data", Shaken()), ("max_physical_batch_size", 4))
    ),
    "two workers, augmentation, poisson": Case(
        bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.2), 1.0), options=(("workers", 2), ("data", Shaken()))
    ),
}


@pytest.fixture(scope="module")
def uninterrupted():
    """Weights and losses of the whole run of a case, computed once."""
    done = {}

    def get(name):
        if name not in done:
            run = CASES[name].start(fresh=False).train()
            done[name] = run.weights(), run.losses
        return done[name]

    return get


def stops(case):
    """Interruptions: before the first step, in mid-epoch, at the end of an epoch, one step before the last."""
    n, epoch = case.mechanism.steps, getattr(case.mechanism.participation, "separation", 5)
    return sorted({0, 1, epoch - 1, epoch, epoch + 1, n - 1})


class TestResume:
    @pytest.mark.parametrize("name", CASES)
    def test_from_a_file(self, name, tmp_path, uninterrupted):
        case, path = CASES[name], tmp_path / "run.ckpt"
        weights, losses = uninterrupted(name)
        at = stops(case) if "workers" not in name else [3, 4]  # in mid-epoch and at its end; workers start slowly
        for step in at:
            first = case.start(fresh=False).train(step)
            plan = {"schedule": first.schedule.state_dict(), "epoch": 3} if case.schedule else {"epoch": 3}
            first.engine.save_checkpoint(path=path, module=first.module, optimizer=first.optimizer, extra=plan)
            second = case.start(fresh=True)
            assert not torch.equal(second.weights(), first.weights())
            extra = second.engine.load_checkpoint(path=path, module=second.module, optimizer=second.optimizer)
            assert extra == plan and second.optimizer.steps_taken == step
            assert torch.equal(second.weights(), first.weights())
            if case.schedule:
                second.schedule.load_state_dict(extra["schedule"])
            second.train()
            assert torch.equal(second.weights(), weights), f"resumed after {step} steps"
            assert first.losses + second.losses == losses  # the same batches in the same order

    @pytest.mark.parametrize("name", ["lambda_cgd", "nu_dp_ftrl", "toeplitz", "poisson", "ghost", "physical batches"])
    def test_from_state_dicts(self, name, uninterrupted):
        case = CASES[name]
        for step in stops(case):
            first = case.start(fresh=False).train(step)
            states = first.module.state_dict(), first.optimizer.state_dict()
            second = case.start(fresh=True)
            second.module.load_state_dict(states[0])
            second.optimizer.load_state_dict(states[1])
            assert torch.equal(second.train().weights(), uninterrupted(name)[0])

    def test_a_resumed_run_is_another_one_without_its_parts(self, uninterrupted):
        # each of noise, batches and momentum matters, so that the equalities above say something
        case, weights = CASES["lambda_cgd"], uninterrupted("lambda_cgd")[0]
        for lost in ("noise", "batches", "state"):
            first = case.start(fresh=False).train(3)
            second = case.start(fresh=True)
            second.module.load_state_dict(first.module.state_dict())
            state, own = first.optimizer.state_dict(), second.optimizer.state_dict()
            if lost == "state":
                state = {**state, "state": {}}
            else:
                state["bluegrad"][lost]["key"] = own["bluegrad"][lost]["key"]
            second.optimizer.load_state_dict(state)
            assert not torch.equal(second.train().weights(), weights), lost

    def test_twice(self, tmp_path, uninterrupted):
        case, path = CASES["toeplitz"], tmp_path / "run.ckpt"
        run = case.start(fresh=False)
        for step in (2, 5, 6):
            run.train(step)
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
            run = case.start(fresh=True)
            run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert torch.equal(run.train().weights(), uninterrupted("toeplitz")[0])

    def test_saving_disturbs_nothing(self, tmp_path, uninterrupted):
        run = CASES["dropout"].start(fresh=False)
        for step in range(1, 8):
            run.train(step)
            run.engine.save_checkpoint(path=tmp_path / "run.ckpt", module=run.module, optimizer=run.optimizer)
        assert torch.equal(run.train().weights(), uninterrupted("dropout")[0])

    def test_counts_and_privacy_go_on(self, tmp_path):
        data = examples()
        data.tensors[0][5] = float("nan")
        first = private_run(mechanism(), data=data).train(4)
        first.engine.save_checkpoint(path=tmp_path / "c", module=first.module, optimizer=first.optimizer)
        second = private_run(mechanism(), data=data, key=None, sampling_key=None)
        second.engine.load_checkpoint(path=tmp_path / "c", module=second.module, optimizer=second.optimizer)
        assert second.optimizer.nonfinite == first.optimizer.nonfinite == 1
        assert second.engine.get_epsilon_spent(1e-5) == first.engine.get_epsilon_spent(1e-5) > 0
        second.train()
        assert second.optimizer.nonfinite == 2
        with pytest.raises(ValueError, match="step=9"):
            next(iter(second.loader))

    def test_a_finished_run_stays_finished(self, tmp_path):
        first = private_run(mechanism()).train()
        first.engine.save_checkpoint(path=tmp_path / "c", module=first.module, optimizer=first.optimizer)
        second = private_run(mechanism(), key=None)
        second.engine.load_checkpoint(path=tmp_path / "c", module=second.module, optimizer=second.optimizer)
        with pytest.raises(ValueError, match="all steps=8"):
            next(iter(second.loader))


class Whole(Shaken):
    """The same, asked for a whole batch at once, which it goes through twice."""

    def __getitems__(self, indices):
        first, second = [self[i] for i in indices], [self[i] for i in indices]
        return [(x + z, y) for (x, y), (z, _) in zip(first, second)]


class TestWorkers:
    def images(self, run, steps=8):
        """What the model is trained on, step by step."""
        seen = []
        run.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
        run.train(steps)
        return seen

    @pytest.mark.parametrize("data", [Shaken, Whole])
    def test_augmentation_depends_on_the_step_and_on_no_worker(self, data):
        one, two, three = (self.images(private_run(mechanism(), data=data(), workers=n)) for n in (1, 2, 3))
        assert all(map(torch.equal, one, two)) and all(map(torch.equal, one, three))
        assert not any(torch.equal(a, b) for a, b in zip(one[:4], one[4:]))  # other numbers in every epoch
        plain = self.images(private_run(mechanism(), data=examples(), workers=2))
        shifts = torch.stack([a - b for a, b in zip(one, plain)]).flatten(2)
        assert len({round(float(s), 9) for s in shifts[..., 0].flatten()}) == shifts[..., 0].numel()  # and every unit

    def test_a_second_pass_over_the_indices_draws_other_numbers(self):
        def noise(data):
            run = private_run(mechanism(), data=data, workers=1)
            return torch.stack(self.images(run, 4)) - torch.stack(images)

        images = self.images(private_run(mechanism(), data=examples(), workers=1), 4)
        once, twice = noise(Shaken()), noise(Whole()) - torch.stack(images)
        assert not torch.allclose(twice, 2 * once, atol=0.1)

    def test_other_keys_other_numbers(self):
        runs = [private_run(mechanism(), data=Shaken(), workers=1, sampling_key=bg.NoiseKey(bytes([i] * 16)))
                for i in range(2)]  # fmt: skip
        one, two = (torch.stack(self.images(run, 4)) for run in runs)
        assert not torch.isclose(one, two).any()

    def test_indices_seed_nobody_in_this_process(self):
        before = generators.capture()
        indices = loader._Seeded([3, 1, 2], 7)
        assert list(indices) == [3, 1, 2] and list(pickle.loads(pickle.dumps(indices))) == [3, 1, 2]
        assert same(generators.capture(), before)

    def test_the_users_data_set_and_worker_init_are_theirs(self):
        data = Shaken()
        model = small_model()
        *_, own = bg.PrivacyEngine().make_private(
            module=model, optimizer=momentum(model.parameters()), mechanism=mechanism(), max_grad_norm=1.0,
            data_loader=DataLoader(data, 6, num_workers=1, worker_init_fn=shift_by_a_million),
        )  # fmt: skip
        assert own.dataset is data
        assert next(iter(own))[0].min() > 1e5


def shift_by_a_million(_):
    get_worker_info().dataset.plain = TensorDataset(*(t + 1_000_000 * (t.dim() > 1) for t in examples().tensors))


@pytest.fixture
def saved(tmp_path):
    """A run of three steps, and the checkpoint's path."""
    run = private_run(mechanism(), make=momentum).train(3)
    path = tmp_path / "saved.ckpt"
    run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer, extra={"epoch": 0})
    return run, path


def other_run(**change):
    keys = {"key": bg.NoiseKey.generate(), "sampling_key": bg.NoiseKey.generate()}
    return private_run(**{"mechanism": mechanism(), "make": momentum, **keys, **change})


def assert_refused(path, match=None, **change):
    """ValueError that names the path, and a run that is as it was."""
    run = other_run(**change)
    before, weights, rng = str(run.optimizer.state_dict()), run.weights(), generators.capture()
    with pytest.raises(ValueError, match=match) as caught:
        run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
    assert str(path) in str(caught.value)
    assert torch.equal(run.weights(), weights) and same(generators.capture(), rng)
    assert str(run.optimizer.state_dict()) == before


OTHERS = {
    "strategy": {"mechanism": mechanism(bg.lambda_cgd(8, 0.8))},
    "participation": {"mechanism": bg.Mechanism(bg.lambda_cgd(8, 0.9), bg.MinSeparation(8, 4, 2), 1.0)},
    "multiplier": {"mechanism": bg.Mechanism(bg.lambda_cgd(8, 0.9), bg.FixedEpochs(8, 2), 1.01)},
    "clip norm": {"clip": 2.0},
    "number of examples": {"data": examples(25), "batch_size": 7},
    "model": {"model": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()},
    "deeper model": {"model": nn.Sequential(*small_model(), nn.Linear(3, 3).double())},
    "parameter groups": {"make": lambda ps: torch.optim.SGD([{"params": [p]} for p in ps], lr=0.1)},
}


class TestBadFiles:
    def test_missing(self, tmp_path):
        assert_refused(tmp_path / "nothing.ckpt", "doesn't exist")

    def test_a_folder(self, tmp_path):
        assert_refused(tmp_path, "can't be read")

    def test_truncated(self, saved):
        path, whole = saved[1], saved[1].read_bytes()
        for length in {0, 1, 4, 100, 1000, len(whole) // 2, len(whole) - 100, len(whole) - 1}:
            path.write_bytes(whole[:length])
            assert_refused(path)

    def test_any_flipped_byte(self, saved):
        # weights, noise state or data order that are silently other than saved: a run that was never accounted
        path, whole = saved[1], saved[1].read_bytes()
        good = checkpoint.read(path)
        wrong, other = [], []
        for at in range(0, len(whole), 23):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            try:
                if not same(good, checkpoint.read(path)):
                    wrong.append(at)
            except ValueError as error:
                assert str(path) in str(error)
            except Exception as error:
                other.append((at, type(error).__name__))
        assert not other, f"not ValueError: {other}"
        assert not wrong, f"loaded with other content: {len(wrong)} of {len(range(0, len(whole), 23))} flips"

    @pytest.mark.parametrize(
        "content", [b"", b"hello", b"\0" * 5000, b"PK\3\4" + b"x" * 500, b"\x80\2}q\0.", b"(lp0\n."]
    )
    def test_foreign(self, tmp_path, content):
        path = tmp_path / "foreign"
        path.write_bytes(content)
        assert_refused(path, "can't be read as a checkpoint|isn't a bluegrad")

    @pytest.mark.parametrize(
        "content", [[1, 2], {"weights": torch.zeros(3)}, {"format": "bluegrad-checkpoint-3"}, torch.zeros(2), None]
    )
    def test_foreign_data_of_torch(self, tmp_path, content):
        path = tmp_path / "foreign.pt"
        torch.save(content, path)
        assert_refused(path)

    def test_code_in_a_file_is_not_run(self, tmp_path):
        path = tmp_path / "evil.pt"
        torch.save({"format": "bluegrad-checkpoint-3", "module": Evil(str(tmp_path / "ran"))}, path)
        assert_refused(path, "can't be read")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("name", OTHERS)
    def test_of_another_run(self, saved, name):
        assert_refused(saved[1], "another", **OTHERS[name])

    def test_of_the_same_run_is_accepted(self, saved):
        run = other_run()
        assert run.engine.load_checkpoint(path=saved[1], module=run.module, optimizer=run.optimizer) == {"epoch": 0}

    def test_the_optimizer_must_be_the_engines(self, saved):
        run, path = saved
        other = other_run()
        for optimizer in (other.optimizer, run.optimizer.original_optimizer, None):
            with pytest.raises(ValueError, match=r"optimizer=.*isn't the one this engine returned"):
                run.engine.load_checkpoint(path=path, module=run.module, optimizer=optimizer)
            with pytest.raises(ValueError, match=r"optimizer=.*isn't the one this engine returned"):
                run.engine.save_checkpoint(path=path, module=run.module, optimizer=optimizer)


def rewritten(path, change):
    """The checkpoint with other content, and the digest of that."""
    state = {name: value for name, value in checkpoint.read(path).items() if name != "digest"}
    change(state)
    torch.save({**state, "digest": checkpoint.digest(state)}, path)


class TestMalformedFiles:
    """Of the right digest: written by hand, or by a program that isn't ours."""

    @pytest.mark.parametrize("new", [None, [], {}, "text", torch.zeros(3), {"torch": torch.zeros(3)}])
    @pytest.mark.parametrize("part", ["module", "optimizer", "generators", "extra"])
    def test_a_part_replaced(self, saved, part, new):
        if part == "extra" and isinstance(new, dict):
            return  # the caller's
        rewritten(saved[1], lambda state: state.update({part: new}))
        assert_refused(saved[1])

    @pytest.mark.parametrize("part", ["module", "optimizer", "generators", "extra", "mechanism", "digest"])
    def test_a_part_missing(self, saved, part):
        state = checkpoint.read(saved[1])
        del state[part]
        torch.save(state, saved[1])
        assert_refused(saved[1], "isn't a bluegrad-checkpoint-3 file")

    @pytest.mark.parametrize("new", [None, [], "text", {}, 3, torch.zeros(3), torch.zeros(3, dtype=torch.uint8)])
    @pytest.mark.parametrize("name", ["torch", "python", "numpy"])
    def test_a_generator_spoiled(self, saved, name, new):
        rewritten(saved[1], lambda state: state["generators"][0].update({name: new}))
        assert_refused(saved[1], "isn't a state of the random generators")

    @pytest.mark.parametrize("name", ["torch", "python", "numpy", "cuda"])
    def test_a_generator_missing(self, saved, name):
        rewritten(saved[1], lambda state: state["generators"][0].pop(name))
        assert_refused(saved[1], "isn't a state of the random generators")

    def test_weights_that_are_no_tensors(self, saved):
        rewritten(saved[1], lambda state: state["module"].update({next(iter(state["module"])): None}))
        assert_refused(saved[1], "another model's weights")

    def test_an_older_format_is_named(self, saved):
        def older(state):
            state["format"] = "bluegrad-checkpoint-1"
            state["torch_rng"] = state.pop("generators")[0]["torch"]

        state = checkpoint.read(saved[1])
        older(state)
        torch.save(state, saved[1])
        assert_refused(
            saved[1], "is a bluegrad-checkpoint-1 file, where .* reads bluegrad-checkpoint-3; finish the run"
        )

    @pytest.mark.parametrize("extra", [[], 3, "text"])
    def test_an_extra_that_is_no_dict_is_not_written(self, saved, extra):
        run, path = saved
        before = path.read_bytes()
        with pytest.raises(ValueError, match=r"extra=.*must be a dict"):
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer, extra=extra)
        assert path.read_bytes() == before


class Devices:
    """Stands for torch.cuda with a number of devices."""

    def __init__(self, monkeypatch, count):
        self.states = [torch.full((16,), i, dtype=torch.uint8) for i in range(count)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [s.clone() for s in self.states])
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set)

    def set(self, state, device):
        self.states[device] = state.clone()


class TestGenerators:
    @pytest.mark.parametrize("kind", ["MT19937", "PCG64", "Philox", "SFC64"])
    def test_are_plain_data_and_restored(self, kind, tmp_path):
        own = np.random.get_bit_generator()
        np.random.set_bit_generator(getattr(np.random, kind)(5))
        try:
            random.gauss(0, 1), np.random.normal()  # noqa: NPY002 - half of a pair is kept for the next call
            torch.save(generators.capture(), tmp_path / "states")
            draw = lambda: (torch.rand(2).tolist(), random.gauss(0, 1), random.random(), np.random.rand())  # noqa: E731, NPY002
            first, second = draw(), draw()
            generators.restore(torch.load(tmp_path / "states", weights_only=True))
            assert draw() == first != second
        finally:
            np.random.set_bit_generator(own)

    def test_of_cuda_devices(self, saved, monkeypatch):
        run, path = saved
        here = Devices(monkeypatch, 2)
        run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        expected = [s.clone() for s in here.states]
        here.states = [s + 7 for s in here.states]
        run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert all(map(torch.equal, here.states, expected))

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_of_other_cuda_devices(self, saved, monkeypatch, count):
        run, path = saved
        Devices(monkeypatch, 2)
        run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        here = Devices(monkeypatch, count)
        here.states = [s + 7 for s in here.states]
        with pytest.warns(UserWarning, match=f"machine of 2 CUDA devices, restored on one of {count}; dropout"):
            run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert [int(s[0]) for s in here.states] == [0, 1, 9][:count]

    def test_of_a_machine_without_any(self, saved, monkeypatch):
        run, path = saved
        here = Devices(monkeypatch, 1)
        run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert int(here.states[0][0]) == 0

    def test_a_foreign_kind_of_numpy_generator_is_refused(self, saved):
        rewritten(saved[1], lambda state: state["generators"][0]["numpy"].update({"bit_generator": "PCG64"}))
        assert_refused(saved[1], "isn't a state of the random generators")


class Evil:
    """Creates a file when unpickled by an unsafe loader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def same(one, other):
    """Deep equality of plain data, tensors included."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


class TestWriting:
    def test_only_the_owner_reads_it(self, saved):
        old = os.umask(0)
        try:
            run, path = saved
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o644)
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            os.umask(old)

    def test_leaves_no_temporary_file(self, saved):
        assert os.listdir(saved[1].parent) == ["saved.ckpt"]

    @pytest.mark.parametrize("where", ["write", "fsync", "replace"])
    def test_a_failing_write_leaves_the_old_file_whole(self, saved, where, monkeypatch):
        run, path = saved
        before = path.read_bytes()
        run.train(5)
        full = OSError(errno.ENOSPC, "No space left on device")
        written = []

        def fail(*_args, **_kwargs):
            raise full

        def half(state, file):
            written.append(file.write(b"x" * 1000))
            raise full

        if where == "write":
            monkeypatch.setattr(checkpoint.torch, "save", half)
        else:
            monkeypatch.setattr(os, where, fail)
        with pytest.raises(OSError, match="No space left"):
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        monkeypatch.undo()
        assert path.read_bytes() == before and os.listdir(path.parent) == ["saved.ckpt"]
        assert written == ([1000] if where == "write" else [])
        run.train()  # and the run goes on

    def test_a_full_disk_in_the_middle_of_the_real_writer(self, saved, monkeypatch):
        run, path = saved
        before, real = path.read_bytes(), os.fdopen

        class Full:
            """A file that takes 2,000 bytes."""

            def __init__(self, file):
                self.file, self.room = file, 2000

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.file.close()

            def write(self, data):
                self.room -= len(data)
                if self.room < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return self.file.write(data)

            def flush(self):
                self.file.flush()

            def fileno(self):
                return self.file.fileno()

        monkeypatch.setattr(os, "fdopen", lambda *a: Full(real(*a)))
        with pytest.raises(OSError, match="No space left"):
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert path.read_bytes() == before and os.listdir(path.parent) == ["saved.ckpt"]

    def test_an_interrupt_cleans_up_as_well(self, saved, monkeypatch):
        run, path = saved

        def interrupt(state, file):
            file.write(b"x")
            raise KeyboardInterrupt

        monkeypatch.setattr(checkpoint.torch, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
        assert os.listdir(path.parent) == ["saved.ckpt"]

    def test_a_folder_that_does_not_exist(self, saved, tmp_path):
        run, _ = saved
        with pytest.raises(OSError):
            run.engine.save_checkpoint(path=tmp_path / "no" / "c", module=run.module, optimizer=run.optimizer)

    def test_a_path_as_text(self, saved, tmp_path):
        run, path = saved
        text = str(tmp_path / "as text.ckpt")
        run.engine.save_checkpoint(path=text, module=run.module, optimizer=run.optimizer, extra={"epoch": 0})
        assert same(checkpoint.read(text), checkpoint.read(path))
