"""The engine: what it refuses at the door, what it guarantees, what it writes down, what it costs in memory."""

import json
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import prepare_module
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import bluegrad as bg
from bluegrad import accounting
from bluegrad.noise import kernel
from oracles.training import CLIP, KEY, SAMPLING_KEY, examples, private_run, sgd, small_model

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

DELTA = 1e-5


def mechanism(strategy=None, epochs=2, multiplier=1.0):
    strategy = bg.lambda_cgd(8, 0.9) if strategy is None else strategy
    return bg.Mechanism(strategy, bg.FixedEpochs(strategy.steps, epochs), multiplier)


def arguments(**change):
    """Keyword arguments of make_private that it accepts, but for `change`; None drops one."""
    model = change.pop("module", None) or small_model()
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    base = {
        "module": model,
        "optimizer": sgd(parameters) if parameters else None,
        "data_loader": DataLoader(examples(), batch_size=6),
        "mechanism": mechanism(),
        "max_grad_norm": 1.0,
    }
    return {name: value for name, value in {**base, **change}.items() if value is not None}


def target(**change):
    """The same for make_private_with_epsilon."""
    base = {k: v for k, v in arguments().items() if k != "mechanism"}
    return {**base, "target_epsilon": 2.0, "target_delta": DELTA, "epochs": 2, **change}


def assert_refused(match, kind=ValueError, **change):
    given = arguments(**change)
    before = given["module"].state_dict()
    with pytest.raises(kind, match=match):
        bg.PrivacyEngine().make_private(**given)
    # and leaves no trace, so that the corrected call works
    assert not any(hasattr(p, "grad_sample") for p in given["module"].parameters())
    assert list(given["module"].state_dict()) == list(before)


def test_the_base_arguments_are_accepted():
    assert len(bg.PrivacyEngine().make_private(**arguments())) == 3
    assert len(bg.PrivacyEngine().make_private_with_epsilon(**target())) == 3


class TestModels:
    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(36), nn.BatchNorm1d(36, affine=False), nn.SyncBatchNorm(36),
                                       nn.BatchNorm1d(36, track_running_stats=False)])  # fmt: skip
    def test_batch_norm_is_named_with_its_path_and_the_fix(self, layer):
        inner = nn.Sequential(nn.Flatten(), layer)
        model = nn.Sequential(inner, nn.Linear(36, 3)).double()
        for change in ({}, {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}):
            assert_refused(r"module\.0\.1=.*BatchNorm.*mixes the examples.*GroupNorm", module=model, **change)

    def test_other_batch_norms(self):
        for layer in (nn.BatchNorm2d(1), nn.BatchNorm3d(1), nn.LazyBatchNorm2d()):
            model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Sequential(layer)).double()
            assert_refused(r"module\.2\.0=.*BatchNorm", module=model, optimizer=sgd(model[1].parameters()))

    def test_group_norm_is_accepted(self):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)).double()
        private_run(mechanism(), model=model).train(2)

    @pytest.mark.parametrize("affine", [True, False])
    def test_running_statistics(self, affine):
        # sums over the data that nothing clips and no noise covers, and that a saved model carries
        norm = nn.InstanceNorm2d(2, affine=affine, track_running_stats=True)
        assert_refused(
            "running", module=nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(32, 3)).double()
        )

    def test_evaluation_mode(self):
        assert_refused(r"module\.training=False.*call module\.train", module=small_model().eval())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        ghost = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}
        assert_refused(f"dtype={dtype}".replace(".", r"\."), bg.Unsupported, module=small_model(dtype=dtype), **ghost)

    @pytest.mark.parametrize("kind", [DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel])
    def test_distributed(self, kind):
        wrapped = kind.__new__(kind)  # a process group isn't needed to be refused
        nn.Module.__init__(wrapped)
        wrapped.module = small_model()
        assert_refused("before they are clipped", bg.Unsupported, module=wrapped)

    @pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
    @pytest.mark.parametrize("by", ["bluegrad", "opacus"])
    def test_wrapped_already(self, mode, by):
        wrapped = private_run(mechanism(), mode=mode).module if by == "bluegrad" else prepare_module(
            small_model(), grad_sample_mode=mode
        )  # fmt: skip
        inner = wrapped._module
        nested = {"module": (wrapped, inner), r"module\.0": (nn.Sequential(wrapped), nn.Sequential(inner))}
        for name, models in nested.items():
            for model in models:
                with pytest.raises(ValueError, match=rf"{name}=.*is wrapped.*already.*to_standard_module\(\)"):
                    private_run(mechanism(), model=model)
        # and the fix works
        private_run(mechanism(), mode=mode, model=wrapped.to_standard_module()).train(1)


class TestOptimizers:
    def test_lbfgs(self):
        model = small_model()
        assert_refused("LBFGS", bg.Unsupported, module=model, optimizer=torch.optim.LBFGS(model.parameters()))

    def test_foreign_parameters(self):
        model = small_model()
        foreign = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
        for optimizer in (sgd(small_model().parameters()), foreign):
            assert_refused(
                r"optimizer\.param_groups=.*must be parameters of the module", module=model, optimizer=optimizer
            )

    def test_nothing_to_train(self):
        model = small_model()
        for p in model.parameters():
            p.requires_grad_(False)
        assert_refused(r"param_groups='0 trainable", module=model)

    def test_a_private_one(self):
        run = private_run(mechanism())
        assert_refused("is private already", optimizer=run.optimizer, module=small_model())

    def test_some_of_the_parameters(self):
        for mode in ("hooks", "ghost"):
            run = private_run(mechanism(), mode=mode, make=lambda ps: sgd(list(ps)[2:]))
            before = run.weights()[:30].clone()
            run.train()
            assert torch.equal(run.weights()[:30], before) and run.optimizer.steps_taken == 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter(examples())


BAD_LOADERS = {
    "weighted": lambda d: DataLoader(d, 6, sampler=WeightedRandomSampler(torch.ones(24), 24)),
    "replacement": lambda d: DataLoader(d, 6, sampler=RandomSampler(d, replacement=True)),
    "subset sampler": lambda d: DataLoader(d, 6, sampler=SubsetRandomSampler(range(12))),
    "list as sampler": lambda d: DataLoader(d, 6, sampler=list(range(24))),
    "own batch sampler": lambda d: DataLoader(d, batch_sampler=BatchSampler(SequentialSampler(d), 6, False)),
    "no batches": lambda d: DataLoader(d, batch_size=None),
    "iterable": lambda d: DataLoader(Stream(), 6),
    "batch above the data": lambda d: DataLoader(d, 25),
    "a list": lambda d: [d[0]],
    "a data set": lambda d: d,
    "another run's": lambda d: private_run(mechanism()).loader,
}


class TestLoaders:
    @pytest.mark.parametrize("name", BAD_LOADERS)
    def test_bad_ones(self, name):
        loader = BAD_LOADERS[name](examples())
        assert_refused("data_loader", data_loader=loader)
        with pytest.raises(ValueError, match="data_loader"):
            bg.PrivacyEngine().make_private_with_epsilon(**target(data_loader=loader))

    def test_empty_data(self):
        empty = TensorDataset(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
        assert_refused("data_loader", data_loader=DataLoader(empty, 6))

    @pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": False}, {"drop_last": True}])
    def test_plain_ones(self, options):
        engine = bg.PrivacyEngine()
        *_, loader = engine.make_private(**arguments(data_loader=DataLoader(examples(), 6, **options)))
        assert len(loader) == 4

    def test_every_example_of_an_epoch_once_whatever_the_loaders_order(self):
        run = private_run(mechanism())
        seen = []
        for x, y in run.loader:
            seen += x.abs().amax((1, 2, 3)).tolist()
            run.backward(x, y)
            run.optimizer.step()
        assert sorted(seen) == sorted(examples().tensors[0].abs().amax((1, 2, 3)).tolist())

    def test_collation_and_data_set_are_kept(self):
        # a dict of tensors by a collation of its own, from a subset
        collate = lambda rows: {"x": torch.stack([x for x, _ in rows]), "n": torch.tensor(len(rows))}  # noqa: E731
        loader = DataLoader(Subset(examples(), range(12)), 3, collate_fn=collate)
        *_, private = bg.PrivacyEngine().make_private(**arguments(data_loader=loader))
        batch = next(iter(private))
        assert batch["x"].shape == (3, 1, 6, 6) and batch["n"] == 3

    def test_number_of_batches_must_be_the_mechanisms(self):
        message = r"len\(data_loader\)=3: differs from the 4 steps an epoch of FixedEpochs.*mean batch is 6, not 8"
        assert_refused(message, data_loader=DataLoader(examples(), 8))

    def test_fewer_examples_than_batches(self):
        loader = DataLoader(Subset(examples(), range(3)), 1)
        assert_refused("smaller than the 4 batches", data_loader=loader)

    def test_empty_batches_of_strange_structure_are_refused(self):
        law = bg.Mechanism(bg.identity(4), bg.Poisson(4, 0.25), 1.0)
        loader = DataLoader(examples(), 6, collate_fn=lambda rows: object())
        assert_refused(r"data_loader\.collate_fn=.*can't yield an empty batch", data_loader=loader, mechanism=law)


GHOST = {"grad_sample_mode": "ghost"}


BAD_ARGUMENTS = {
    "ghost without criterion": (GHOST, "criterion=None"),
    "criterion without ghost": ({"criterion": nn.CrossEntropyLoss()}, "criterion=CrossEntropyLoss.*goes with"),
    "criterion of other reduction": (
        {**GHOST, "criterion": nn.CrossEntropyLoss(reduction="sum")}, r"criterion\.reduction='sum'",
    ),
    "criterion without reduction": ({**GHOST, "criterion": nn.Identity()}, r"criterion\.reduction=None"),
    "mode": ({"grad_sample_mode": "ew"}, "grad_sample_mode='ew'.*hooks, functorch, ghost"),
    "reduction": ({"loss_reduction": "none"}, "loss_reduction='none'.*mean, sum"),
    "physical 0": ({"max_physical_batch_size": 0}, "max_physical_batch_size=0"),
    "physical 1.5": ({"max_physical_batch_size": 1.5}, "max_physical_batch_size=1.5"),
    "clip 0": ({"max_grad_norm": 0.0}, "=0.0"),
    "clip negative": ({"max_grad_norm": -1.0}, "=-1.0"),
    "clip nan": ({"max_grad_norm": float("nan")}, "=nan"),
    "clip infinite": ({"max_grad_norm": float("inf")}, "=inf"),
    "clip a layer": ({"max_grad_norm": [1.0, 2.0]}, r"=\[1\.0, 2\.0\]"),
    "seed as key": ({"key": 42}, "key='int'.*NoiseKey.generate"),
    "seed as sampling key": ({"sampling_key": 42}, "key='int'.*NoiseKey.generate"),
    "zero as key": ({"key": 0}, "key='int'.*NoiseKey.generate"),
    "strategy as mechanism": ({"mechanism": bg.identity(8)}, "mechanism=.*must be a Mechanism"),
    "mechanism and strategy": ({"strategy": bg.identity(8)}, "already says"),
    "mechanism and multiplier": ({"noise_multiplier": 1.0}, "already says"),
    "mechanism and participation": ({"participation": bg.SinglePass(8)}, "already says"),
}  # fmt: skip


class TestArguments:
    @pytest.mark.parametrize("name", BAD_ARGUMENTS)
    def test_bad_ones(self, name):
        change, match = BAD_ARGUMENTS[name]
        assert_refused(match, **change)

    def test_same_key_for_noise_and_batches(self):
        # by mistake or not: domains keep them apart
        run = private_run(mechanism(), key=KEY, sampling_key=KEY).train()
        assert run.optimizer.steps_taken == 8

    def test_neither_mechanism_nor_strategy(self):
        for given in ({}, {"strategy": bg.identity(8)}, {"noise_multiplier": 1.0}):
            without = {k: v for k, v in arguments().items() if k != "mechanism"}
            with pytest.raises(ValueError, match="is needed, or else strategy and noise_multiplier"):
                bg.PrivacyEngine().make_private(**without, **given)

    def test_strategy_and_multiplier(self):
        engine = bg.PrivacyEngine()
        given = {k: v for k, v in arguments().items() if k != "mechanism"}
        engine.make_private(**given, strategy=bg.lambda_cgd(12, 0.5), noise_multiplier=1.5)
        assert engine.mechanism.participation == bg.FixedEpochs(12, 3)
        assert engine.mechanism.noise_multiplier == 1.5

    def test_strategy_of_broken_epochs(self):
        given = {k: v for k, v in arguments().items() if k != "mechanism"}
        with pytest.raises(ValueError, match=r"strategy\.steps=10: must be a multiple of the loader's 4 batches"):
            bg.PrivacyEngine().make_private(**given, strategy=bg.identity(10), noise_multiplier=1.0)
        engine = bg.PrivacyEngine()
        law = bg.MinSeparation(10, 4, 3)
        engine.make_private(**given, strategy=bg.identity(10), noise_multiplier=1.0, participation=law)
        assert engine.mechanism.participation == law

    def test_correlated_noise_under_poisson_sampling(self):
        given = {k: v for k, v in arguments().items() if k != "mechanism"}
        law = bg.Poisson(8, 0.25)
        with pytest.raises(bg.Unsupported, match=r"lambda_cgd.*Poisson"):
            bg.PrivacyEngine().make_private(
                **given, strategy=bg.lambda_cgd(8, 0.9), noise_multiplier=1.0, participation=law
            )

    def test_functorch_under_poisson_sampling(self):
        law = bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.25), 1.0)
        assert_refused("functorch.*empty batches", bg.Unsupported, mechanism=law, grad_sample_mode="functorch")

    def test_no_positional_arguments(self):
        with pytest.raises(TypeError):
            bg.PrivacyEngine().make_private(*arguments().values())

    def test_an_engine_guards_one_run(self):
        engine = bg.PrivacyEngine()
        engine.make_private(**arguments())
        for call in (lambda: engine.make_private(**arguments()), lambda: engine.make_private_with_epsilon(**target())):
            with pytest.raises(RuntimeError, match="engine: guards one run already"):
                call()

    @pytest.mark.parametrize("name", BAD_ARGUMENTS)
    def test_a_refused_call_can_be_corrected(self, name):
        # the same engine, model and optimizer, with the argument put right
        change, match = BAD_ARGUMENTS[name]
        engine, good = bg.PrivacyEngine(), arguments()
        with pytest.raises(ValueError, match=match):
            engine.make_private(**{**good, **change})
        engine.make_private(**good)

    def test_before_any_run(self):
        engine = bg.PrivacyEngine()
        for call in (
            lambda: engine.mechanism,
            lambda: engine.get_epsilon(DELTA),
            lambda: engine.get_epsilon_spent(DELTA),
            lambda: engine.ledger(DELTA),
        ):
            with pytest.raises(RuntimeError, match="no run was made private yet"):
                call()

    @pytest.mark.parametrize(
        "change, match",
        [
            ({"target_epsilon": 0.0}, r"target_epsilon=0\.0"),
            ({"target_epsilon": -1.0}, r"target_epsilon=-1\.0"),
            ({"target_epsilon": float("inf")}, "target_epsilon=inf"),
            ({"target_delta": 0.0}, r"target_delta=0\.0"),
            ({"target_delta": 1.0}, r"target_delta=1\.0"),
            ({"epochs": 0}, "epochs=0"),
            ({"epochs": 1.5}, r"epochs=1\.5"),
            ({"strategy": bg.identity(9)}, "9"),
            (
                {"participation": bg.SinglePass(4)},
                r"steps=4: must equal epochs \* len\(data_loader\) = 8",
            ),
        ],
    )
    def test_targets(self, change, match):
        with pytest.raises(ValueError, match=match):
            bg.PrivacyEngine().make_private_with_epsilon(**target(**change))


class TestFreshKeys:
    def test_are_the_default_and_differ_from_run_to_run(self):
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002 - the global state is the point
            runs.append(private_run(mechanism(), key=None, sampling_key=None).optimizer.state_dict()["bluegrad"])
        keys = [(r["noise"]["key"], r["batches"]["key"]) for r in runs]
        assert len({key for pair in keys for key in pair}) == 4

    def test_the_global_generator_is_left_alone(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        private_run(mechanism(), key=None, sampling_key=None).train()
        assert torch.equal(torch.rand(3), expected)


CASES = {
    "default": {},
    "identity": {"strategy": bg.identity(8)},
    "a function": {"strategy": bg.optimize.nu_dp_ftrl},
    "min separation": {"participation": bg.MinSeparation(8, 4, 2)},
    "poisson": {"strategy": bg.identity(8), "participation": bg.Poisson(8, 0.25)},
    "strict": {"target_epsilon": 0.1},
}


class TestEpsilon:
    @pytest.mark.parametrize("name", CASES)
    def test_is_the_mechanisms_and_never_above_the_target(self, name):
        engine = bg.PrivacyEngine()
        given = target(**CASES[name])
        engine.make_private_with_epsilon(**given)
        epsilon = engine.get_epsilon(DELTA)
        assert epsilon == bg.epsilon(engine.mechanism, delta=DELTA)
        assert 0.98 * given["target_epsilon"] < epsilon <= given["target_epsilon"]
        assert engine.get_epsilon(1e-7) > epsilon

    def test_the_mechanism_is_the_calibrated_one(self):
        engine = bg.PrivacyEngine()
        engine.make_private_with_epsilon(**target(strategy=bg.lambda_cgd(8, 0.5)))
        expected = bg.calibrate(bg.lambda_cgd(8, 0.5), bg.FixedEpochs(8, 2), epsilon=2.0, delta=DELTA)
        assert engine.mechanism.fingerprint == expected.fingerprint

    @pytest.mark.parametrize("law", ["fixed", "poisson", "min separation"])
    def test_spent_grows_from_0_to_the_whole(self, law):
        m = {
            "fixed": mechanism(),
            "poisson": bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.25), 1.0),
            "min separation": bg.Mechanism(bg.lambda_cgd(8, 0.9), bg.MinSeparation(8, 4, 2), 1.0),
        }[law]
        run = private_run(m, batch_size=6)
        spent = [run.engine.get_epsilon_spent(DELTA)]
        for step in (1, 5, 8) if law == "poisson" else range(1, 9):  # a composition takes a second
            run.train(step)
            spent.append(run.engine.get_epsilon_spent(DELTA))
        assert spent[0] == 0.0 < spent[1]
        assert all(b >= a for a, b in pairwise(spent))
        assert spent[-1] == run.engine.get_epsilon(DELTA) > spent[1]

    def test_spent_counts_releases_and_not_batches_in_the_loader(self):
        run = private_run(mechanism(), max_physical_batch_size=3)
        x, y = next(iter(run.loader))
        run.backward(x, y)
        run.optimizer.step()
        assert run.optimizer.accumulating and run.engine.get_epsilon_spent(DELTA) == 0.0

    def test_spent_is_computed_once_a_step_and_delta(self, monkeypatch, tmp_path):
        law = bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.25), 1.0)
        run = private_run(law, batch_size=6)
        calls, spent, real = [], run.engine.get_epsilon_spent, accounting.epsilon

        def counted(mechanism, *, delta, method):
            calls.append((mechanism.steps, delta))
            return real(mechanism, delta=delta, method=method)

        monkeypatch.setattr(accounting, "epsilon", counted)
        fresh = lambda steps, delta: real(law.after(steps), delta=delta)  # noqa: E731
        assert spent(DELTA) == spent(DELTA) == 0.0 and not calls
        run.train(1)
        assert spent(DELTA) == spent(DELTA) == fresh(1, DELTA) and calls == [(1, DELTA)]
        assert spent(1e-3) == spent(1e-3) == fresh(1, 1e-3) < spent(DELTA) and len(calls) == 3
        run.engine.save_checkpoint(path=tmp_path / "c", module=run.module, optimizer=run.optimizer)
        run.train(3)
        assert spent(DELTA) == spent(DELTA) == fresh(3, DELTA) and calls[3:] == [(3, DELTA)]
        run.engine.load_checkpoint(path=tmp_path / "c", module=run.module, optimizer=run.optimizer)
        assert spent(DELTA) == fresh(1, DELTA) and len(calls) == 5  # what was loaded, not what was spent before

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan"), "1e-5"])
    def test_delta(self, delta):
        run = private_run(mechanism()).train(1)
        for call in (run.engine.get_epsilon, run.engine.get_epsilon_spent, run.engine.ledger):
            with pytest.raises(ValueError, match="delta="):
                call(delta)


class TestLedger:
    def test_says_what_the_guarantee_rests_on(self):
        run = private_run(mechanism()).train(3)
        ledger = run.engine.ledger(DELTA)
        m = run.engine.mechanism
        assert ledger["guarantee"]["epsilon"] == run.engine.get_epsilon(DELTA)
        assert ledger["guarantee"]["delta"] == DELTA
        assert ledger["mechanism"] == m.describe() and ledger["fingerprint"] == m.fingerprint
        assert (ledger["steps_planned"], ledger["steps_taken"], ledger["examples"]) == (8, 3, 24)
        assert ledger["clip_norm"] == CLIP and ledger["expected_batch_size"] == 6.0
        assert ledger["noise_standard_deviation"] == 1.0 * CLIP * m.sensitivity

    @pytest.mark.parametrize("law", ["fixed", "poisson"])
    def test_is_json_without_any_key(self, law):
        m = mechanism() if law == "fixed" else bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.25), 1.0)
        run = private_run(m, batch_size=6).train(3)
        text = json.dumps(run.engine.ledger(DELTA), allow_nan=False)
        assert json.loads(text) == run.engine.ledger(DELTA)
        assert not holds_a_key(text)
        # the search finds keys where they are
        state = run.optimizer.state_dict()["bluegrad"]
        assert holds_a_key(str(state["noise"])) and holds_a_key(str(state["batches"]))


def holds_a_key(text):
    for key in (KEY.secret, SAMPLING_KEY.secret):
        forms = (key.hex(), str(int.from_bytes(key, "big")), str(int.from_bytes(key, "little")), str(list(key))[1:-1])
        if any(form[i : i + 10] in text for form in forms for i in range(0, len(form) - 10)):
            return True
    return False


class Peaks(TorchDispatchMode):
    """Largest sum of bytes of the torch storages that were alive at once, as seen after every operation."""

    def __init__(self):
        super().__init__()
        self.alive = {}
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                alive = StorageWeakRef(storage)
                self.alive[alive.cdata] = alive, storage.nbytes()
        self.alive = {at: entry for at, entry in self.alive.items() if not entry[0].expired()}
        self.largest = max(self.largest, sum(size for _, size in self.alive.values()))
        return out


WIDE, TALL = 1500, 1000  # one leaf of 1.5 million elements: 6 MB


def peak_copies(strategy, mode):
    """Peak memory of the fourth training step in model copies: torch storages plus NumPy arrays."""
    data = TensorDataset(torch.zeros(8, WIDE), torch.zeros(8, dtype=torch.int64))
    tracemalloc.start()
    try:
        run = private_run(
            mechanism(strategy, 5), mode=mode, data=data, model=nn.Sequential(nn.Linear(WIDE, TALL, bias=False)),
            make=lambda ps: torch.optim.SGD(ps, lr=0.1), key=None,
        )  # fmt: skip
        run.train(3)
        x, y = next(iter(run.loader))
        tracemalloc.reset_peak()
        with Peaks() as storages:
            run.backward(x, y)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return (storages.largest + arrays) / (4 * WIDE * TALL)


def noise_copies(strategy):
    """The same for the noise of the fourth step alone, added in place to a gradient."""
    gradient = torch.zeros(TALL, WIDE)
    tracemalloc.start()
    try:
        stream = bg.NoiseStream(mechanism(strategy, 5), [gradient], clip_norm=1.0, key=KEY)
        for _ in range(3):
            stream.add_to([gradient])
        tracemalloc.reset_peak()
        with Peaks() as storages:
            stream.add_to([gradient])
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return (storages.largest + arrays) / (4 * WIDE * TALL)


class TestMemory:
    @pytest.fixture(autouse=True)
    def one_scratch(self, monkeypatch):
        monkeypatch.setattr(kernel, "_MOST_THREADS", 1)  # scratch is a constant for each thread; one is reproducible

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_a_step_of_lambda_cgd_takes_no_model_copy_more_than_dp_sgd(self, mode):
        peak_copies(bg.identity(20), mode)  # modules that a first step imports are no part of it
        dp_sgd = peak_copies(bg.identity(20), mode)
        assert dp_sgd >= 2.0  # weights and gradient at least: the measurement sees them
        assert abs(peak_copies(bg.lambda_cgd(20, 0.9), mode) - dp_sgd) < 0.05
        # what is kept shows: the raw noise of four steps, and the bands of a recurrence (beside less scratch)
        assert peak_copies(bg.nu_dp_ftrl(20, 0.05), mode) - dp_sgd > 3.5
        assert 0.75 <= peak_copies(bg.toeplitz([1.0, 0.5], 20), mode) - dp_sgd < 1.5
        assert 1.75 <= peak_copies(bg.toeplitz([1.0, 0.5, 0.2], 20), mode) - dp_sgd < 2.5

    def test_nor_does_its_noise_alone(self):
        noise_copies(bg.identity(20))
        dp_sgd = noise_copies(bg.identity(20))
        assert 1.0 < dp_sgd < 2.0  # the gradient, and scratch that no model makes larger
        assert abs(noise_copies(bg.lambda_cgd(20, 0.9)) - dp_sgd) < 0.05
        assert noise_copies(bg.nu_dp_ftrl(20, 0.05)) - dp_sgd > 3.0
        assert 0.75 <= noise_copies(bg.toeplitz([1.0, 0.5], 20)) - dp_sgd < 1.5
