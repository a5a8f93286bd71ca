"""The noise stream: the dense product N Z, resumable, secret, and of the covariance that is accounted."""

import io
import json
import multiprocessing
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

import bluegrad as bg
from bluegrad.noise import source
from oracles.training import dense_noise, fresh_noise

KEY = bg.NoiseKey(bytes.fromhex("9f8e7d6c5b4a39281706f5e4d3c2b1a0"))
CLIP = 0.7
EPOCHS = 2

# strategy -> the way its noise must be formed
STRATEGIES = {
    "identity": (lambda: bg.identity(6), source.Replayed),
    "lambda_cgd": (lambda: bg.lambda_cgd(6, 0.9), source.Replayed),
    "nu_dp_ftrl, few": (lambda: bg.nu_dp_ftrl(8, 0.05), source.Replayed),
    "banded_inverse": (lambda: bg.banded_inverse_toeplitz([1.0, -0.6, -0.1, 0.05], 10), source.Replayed),
    "nu_dp_ftrl": (lambda: bg.nu_dp_ftrl(20, 0.05), source.Kept),
    "square_root": (lambda: bg.square_root(bg.PrefixSum(18)), source.Kept),
    "toeplitz": (lambda: bg.toeplitz([1.5, 0.6, 0.3], 20), source.Recurrent),
    "toeplitz, signs": (lambda: bg.toeplitz([2.0, -0.5, 0.25], 8), source.Recurrent),
}


def mechanism(name="lambda_cgd", multiplier=1.3):
    strategy = STRATEGIES[name][0]()
    return bg.Mechanism(strategy, bg.FixedEpochs(strategy.steps, EPOCHS), multiplier)


def leaves():
    """Shapes and layouts that a model may have: matrix, scalar, nothing, channels last, transposed, double, long."""
    return [
        torch.zeros(3, 5),
        torch.zeros(()),
        torch.zeros(0, 4),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(4, 3).t(),
        torch.zeros(7, dtype=torch.float64),
        torch.zeros(40_000),  # more than one block
        torch.zeros(6, 2, dtype=torch.float64).t(),
    ]


def stream(m, like=None, *, clip_norm=CLIP, key=KEY):
    return bg.NoiseStream(m, leaves() if like is None else like, clip_norm=clip_norm, key=key)


def through_disk(state):
    """What torch.save writes and the safe loader reads."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def rows(s, steps=None):
    return [s.next() for _ in range(s.mechanism.steps if steps is None else steps)]


def assert_same_bits(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


@pytest.fixture(params=list(STRATEGIES))
def name(request):
    return request.param


class TestMeaning:
    def test_kinds_are_as_listed(self, name):
        assert type(stream(mechanism(name))._source) is STRATEGIES[name][1]

    def test_equals_the_dense_product(self, name):
        m = mechanism(name)
        noise = rows(stream(m))
        dense = dense_noise(m, [tuple(x.shape) for x in leaves()], clip=CLIP, key=KEY)
        # A sum of at most 20 float32 products of size scale * |N| * 6.77, each rounded to 2^-24.
        atol = 40 * m.noise_scale(CLIP) * np.abs(m.strategy.noising()).max() * 6.77 * 2.0**-24
        for t, row in enumerate(noise):
            for got, like, expected in zip(row, leaves(), dense):
                assert got.dtype == like.dtype and got.shape == like.shape
                np.testing.assert_allclose(got.double().flatten().numpy(), expected[t], rtol=0, atol=atol)
        # The tolerance is far below what a wrong sign, lag or scale changes.
        for wrong in (1.0001 * dense[6], np.roll(dense[6], 1, axis=0), dense[6][:, ::-1]):
            assert np.abs(noise[-1][6].numpy() - wrong[-1]).max() > atol

    def test_adds_in_place_what_next_returns(self, name):
        one, other = stream(mechanism(name)), stream(mechanism(name))
        for _ in range(one.mechanism.steps):
            into = leaves()
            pointers = [x.data_ptr() for x in into]
            other.add_to(into)
            assert pointers == [x.data_ptr() for x in into]
            assert_same_bits(one.next(), into)

    def test_adds_to_what_is_there(self):
        m = mechanism()
        into = [torch.full_like(x, 3.0) for x in leaves()]
        stream(m).add_to(into)
        for got, noise in zip(into, stream(m).next()):
            torch.testing.assert_close(got, 3.0 + noise, rtol=1e-6, atol=1e-6)

    def test_adds_to_parameters_that_need_gradients(self):
        p = torch.nn.Parameter(torch.zeros(3))
        stream(mechanism(), [p]).add_to([p])
        assert p.abs().min() > 0 and p.grad_fn is None

    def test_layout_and_dtype_do_not_change_the_numbers(self):
        m = mechanism()
        plain = [torch.zeros(x.shape) for x in leaves()]
        for a, b in zip(stream(m).next(), stream(m, plain).next()):
            assert torch.equal(a.float(), b)

    def test_a_double_leaf_longer_than_a_chunk(self, monkeypatch):
        from bluegrad.noise import stream as module

        monkeypatch.setattr(module, "_CHUNK", 1000)
        for name in ("lambda_cgd", "nu_dp_ftrl", "toeplitz"):
            m = mechanism(name)
            a = rows(stream(m, [torch.zeros(4321, dtype=torch.float64)]), 4)
            b = rows(stream(m, [torch.zeros(4321)]), 4)
            for x, y in zip(a, b):
                assert torch.equal(x[0].float(), y[0])

    def test_leaves_and_steps_have_noise_of_their_own(self):
        s = stream(mechanism("identity"), [torch.zeros(500), torch.zeros(500)])
        vectors = [leaf for row in rows(s) for leaf in row]
        # Correlations of independent vectors are Normal(0, 1 / 500): 7 deviations for the 66 pairs, < 1e-9.
        correlation = np.corrcoef(torch.stack(vectors).numpy())
        assert np.abs(correlation - np.eye(len(vectors))).max() < 7 / 500**0.5

    def test_scale_follows_clip_norm_and_multiplier(self):
        base = stream(mechanism(multiplier=1.0), clip_norm=1.0).next()[6]
        twice = stream(mechanism(multiplier=2.0), clip_norm=3.0).next()[6]
        torch.testing.assert_close(twice, 6.0 * base, rtol=1e-6, atol=0)


class TestHorizon:
    def test_a_step_past_the_last_raises_and_changes_nothing(self, name):
        s = stream(mechanism(name), [torch.zeros(3)])
        rows(s)
        into = [torch.zeros(3)]
        for _ in range(2):
            with pytest.raises(ValueError, match=f"ends after steps={s.mechanism.steps}"):
                s.next()
            with pytest.raises(ValueError, match="ends after"):
                s.add_to(into)
        assert not into[0].any() and s.steps_taken == s.mechanism.steps

    def test_counts_steps(self):
        s = stream(mechanism())
        for step in range(4):
            assert s.steps_taken == step
            s.next()


class TestResume:
    def test_bit_equal_from_every_step(self, name):
        m = mechanism(name)
        whole = rows(stream(m))
        going = stream(m)
        for step in range(m.steps):
            state = through_disk(going.state_dict())
            resumed = stream(m, key=bg.NoiseKey.generate())
            resumed.load_state_dict(state)
            assert resumed.steps_taken == step
            for expected in whole[step : step + 3]:
                assert_same_bits(resumed.next(), expected)
            assert_same_bits(going.next(), whole[step])  # saving disturbs nothing

    def test_a_state_is_a_snapshot(self, name):
        m = mechanism(name)
        s = stream(m, [torch.zeros(5)])
        rows(s, 3)
        state = s.state_dict()
        expected = rows(s, 2)
        for _ in range(2):  # neither going on nor loading changes what was saved
            resumed = stream(m, [torch.zeros(5)])
            resumed.load_state_dict(state)
            for got, want in zip(rows(resumed, 2), expected):
                assert_same_bits(got, want)

    def test_the_state_is_plain_data(self, name):
        s = stream(mechanism(name))
        rows(s, 3)
        state = s.state_dict()
        buffers = state.pop("buffers")
        assert json.loads(json.dumps(state)) == state
        assert all(type(x) is torch.Tensor for leaf in buffers for x in leaf)
        kept = {source.Recurrent: len(s.mechanism.strategy.coefficients()) - 1}.get(STRATEGIES[name][1], 0)
        assert [len(leaf) for leaf in buffers] == [kept] * len(leaves())

    @pytest.mark.parametrize(
        "change, field",
        [
            ({"m": mechanism(multiplier=1.3000001)}, "mechanism"),
            ({"m": bg.Mechanism(bg.lambda_cgd(6, 0.89), bg.FixedEpochs(6, EPOCHS), 1.3)}, "mechanism"),
            ({"m": bg.Mechanism(bg.lambda_cgd(6, 0.9), bg.FixedEpochs(6, 3), 1.3)}, "mechanism"),
            ({"clip_norm": 0.71}, "clip_norm"),
            ({"like": leaves()[:-1]}, "shapes"),
            ({"like": leaves()[::-1]}, "shapes"),
        ],
    )
    def test_another_runs_state_is_refused(self, change, field):
        state = stream(mechanism()).state_dict()
        other = stream(**{"m": mechanism(), **change})
        before = other.state_dict()
        with pytest.raises(ValueError, match=rf"state\['{field}'\]=.*must equal.*resume with"):
            other.load_state_dict(state)
        assert str(other.state_dict()) == str(before)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda state: None,
            lambda state: [],
            lambda state: {},
            lambda state: {**state, "format": "bluegrad-noise-0"},
            lambda state: {**state, "step": -1},
            lambda state: {**state, "step": 7},
            lambda state: {**state, "step": 1.0},
            lambda state: {k: v for k, v in state.items() if k != "step"},
            lambda state: {**state, "key": "12"},
            lambda state: {**state, "key": None},
        ],
    )
    def test_what_is_no_state_is_refused(self, spoil):
        s = stream(mechanism())
        before = s.state_dict()
        with pytest.raises(ValueError):
            s.load_state_dict(spoil(s.state_dict()))
        assert str(s.state_dict()) == str(before)

    @pytest.mark.parametrize("spoil", [lambda b: [], lambda b: [[] for _ in b], lambda b: [leaf[:1] for leaf in b]])
    def test_lost_buffers_are_refused(self, spoil):
        # without them the recurrence would start anew and the noise no longer cancel as accounted
        s = stream(mechanism("toeplitz"), [torch.zeros(3), torch.zeros(2)])
        rows(s, 4)
        state = s.state_dict()
        with pytest.raises(ValueError):
            stream(mechanism("toeplitz"), [torch.zeros(3), torch.zeros(2)]).load_state_dict(
                {**state, "buffers": spoil(state["buffers"])}
            )


class TestArguments:
    @pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf"), True, "1", None])
    def test_clip_norm(self, clip_norm):
        with pytest.raises(ValueError, match="clip_norm="):
            stream(mechanism(), clip_norm=clip_norm)

    @pytest.mark.parametrize("like", [[], [torch.zeros(3, dtype=torch.int64)], [[1.0]], [torch.zeros(2), None]])
    def test_like(self, like):
        with pytest.raises(ValueError, match="like="):
            stream(mechanism(), like)

    def test_mechanism(self):
        with pytest.raises(ValueError, match="mechanism="):
            stream(bg.identity(3))

    @pytest.mark.parametrize("shapes", [[(3,)], [(3,), (2, 1)], [(2,), (3,)], [(3,), (2,), (1,)]])
    def test_other_shapes_are_refused_before_any_noise(self, shapes):
        s = stream(mechanism(), [torch.zeros(3), torch.zeros(2)])
        into = [torch.zeros(shape) for shape in shapes]
        with pytest.raises(ValueError, match="tensors="):
            s.add_to(into)
        assert not any(x.any() for x in into) and s.steps_taken == 0


class TestSecrecy:
    @pytest.mark.parametrize("key", [0, 42, None, "9f" * 16, bytes(16), b"", np.int64(3), torch.Generator()])
    def test_only_a_noise_key_is_a_key(self, key):
        with pytest.raises(ValueError, match=r"key=.*NoiseKey\.generate"):
            stream(mechanism(), key=key)

    def test_messages_and_representations_hide_it(self):
        secret = bytes.fromhex("9f8e7d6c5b4a39281706f5e4d3c2b1")
        texts = [repr(KEY), str(KEY), f"{KEY}", repr({"key": KEY}), repr(stream(mechanism()))]
        bad = [
            lambda: bg.NoiseKey(secret),
            lambda: bg.NoiseKey(secret + secret),
            lambda: bg.NoiseKey(bytearray(secret + b"x")),
            lambda: bg.NoiseKey(secret.hex()),
            lambda: bg.NoiseKey.from_hex(secret.hex()),
            lambda: bg.NoiseKey.from_hex("zz" + secret.hex()),
            lambda: bg.NoiseKey.from_hex(secret),
            lambda: stream(mechanism(), key=secret),
            lambda: stream(mechanism(), key=secret.hex()),
            lambda: stream(mechanism(), key=int.from_bytes(secret, "big")),
        ]
        for make in bad:
            with pytest.raises(ValueError) as caught:
                make()
            texts += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
        for text in texts:
            assert not leaks(text, secret), text

    def test_the_search_for_a_leak_finds_one(self):
        secret = bytes.fromhex("9f8e7d6c5b4a39281706f5e4d3c2b1")
        for text in (secret.hex(), repr(secret), str(list(secret)), str(int.from_bytes(secret, "big"))):
            assert leaks(text, secret)

    def test_refused_states_hide_it(self):
        state = stream(mechanism(multiplier=2.0)).state_dict()
        with pytest.raises(ValueError) as caught:
            stream(mechanism()).load_state_dict(state)
        assert not leaks(str(caught.value), KEY.secret)

    def test_keys_survive_hex_and_compare_by_value(self):
        assert bg.NoiseKey.from_hex(KEY.hex()) == KEY
        assert bg.NoiseKey.generate() != bg.NoiseKey.generate()
        with pytest.raises(AttributeError):
            KEY.secret = bytes(16)


def leaks(text, secret):
    forms = {secret.hex(), str(int.from_bytes(secret, "big")), repr(secret)[2:-1], str(list(secret))[1:-1]}
    return any(form[i : i + 8].lower() in text.lower() for form in forms for i in range(0, len(form) - 8))


class TestFreshKeys:
    COUNT = 1 << 16

    def test_two_in_one_process(self):
        assert_unrelated(fresh_noise(self.COUNT), fresh_noise(self.COUNT))

    def test_two_in_two_processes(self):
        # spawned, with the same global seeds; nothing is inherited but the code
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            one, other = pool.map(fresh_noise, [self.COUNT] * 2, chunksize=1)
        assert_unrelated(one, other)

    def test_related_noise_fails_the_comparison(self):
        one, other = (np.frombuffer(fresh_noise(self.COUNT), np.float32) for _ in range(2))
        for related in (one, np.roll(one, 2), -one, (other + 0.05 * one).astype(np.float32)):
            with pytest.raises(AssertionError):
                assert_unrelated(one.tobytes(), related.tobytes())
        spliced = other.copy()
        spliced[100:102] = one[500:502]
        with pytest.raises(AssertionError):
            assert_unrelated(one.tobytes(), spliced.tobytes())


def assert_unrelated(one, other):
    """No pair of neighbouring values occurs in both, and the correlation is 0.

    Pairs: a float32 normal takes one of its values with probability below 1e-7, so that 2^15 x 2^15 comparisons of
    pairs meet with probability below 1e-5 if values were that coarse; their typical 3e-8 makes it 1e-6.
    Correlation: sum of products over sqrt(count) is Normal(0, 1) up to O(1 / count); 5.2 deviations are 2e-7. A share
    of 5 % of the other's noise moves it by 0.05 * 256 = 12.8.
    """
    pairs = [set(np.frombuffer(noise, np.uint64).tolist()) for noise in (one, other)]
    assert not pairs[0] & pairs[1]
    x, y = (np.frombuffer(noise, np.float32).astype(float) for noise in (one, other))
    assert abs(x @ y) / len(x) ** 0.5 < 5.2


class TestGlobalSeeds:
    @staticmethod
    def seed(value):
        torch.manual_seed(value)
        np.random.seed(value)  # noqa: NPY002 - the global state is the point
        random.seed(value)

    @staticmethod
    def draw():
        return torch.rand(4).tolist(), np.random.rand(4).tolist(), random.random()  # noqa: NPY002

    def test_do_not_reach_the_noise(self):
        self.seed(1)
        first = rows(stream(mechanism()))
        keys = {bg.NoiseKey.generate().secret}
        self.seed(1)
        keys.add(bg.NoiseKey.generate().secret)
        assert len(keys) == 2
        self.seed(2)
        for got, want in zip(rows(stream(mechanism())), first):
            assert_same_bits(got, want)

    def test_are_not_disturbed(self):
        self.seed(3)
        expected = self.draw()
        self.seed(3)
        for name in STRATEGIES:
            s = stream(mechanism(name), key=bg.NoiseKey.generate())
            rows(s, 3)
            s.load_state_dict(s.state_dict())
        assert self.draw() == expected


# Empirical covariance. Y, shape (n, d), holds d columns that are independent Normal(0, S), S = scale^2 N N^T.
# U = (scale N)^-1 Y is white, and the statistic is the likelihood ratio for "the covariance of U is I":
#     T = d (tr R - log det R - n),  R = U U^T / d.
# Null distribution: c T is chi-square with n (n + 1) / 2 degrees of freedom, with Bartlett's correction
# c = 1 - (2 n + 1 - 2 / (n + 1)) / (6 d), up to O(1 / d^2); with n <= 20 and d = 20,000 that is nothing. T rejects
# above the quantile of 5e-7. Elements that depend on each other would not show in R: the sum of products of
# neighbouring columns, over sqrt(n d), is Normal(0, 1) and rejects beyond 5.03 (5e-7). So the false alarm of the
# whole is 1e-6 at most.
# Power: if U has covariance Q, then T is about Normal(d g(Q), 2 d tr (Q - I)^2), g(Q) = tr Q - log det Q - n;
# `detection` gives the probability that it passes the limit, and the tests demand 0.999 or more of it.
COLUMNS = 20_000
ALARM = 5e-7


def covariance_limit(n):
    return stats.chi2.isf(ALARM, n * (n + 1) // 2) / bartlett(n)


def bartlett(n):
    return 1 - (2 * n + 1 - 2 / (n + 1)) / (6 * COLUMNS)


def check_covariance(noise, factor):
    """The test itself: columns of `noise` have covariance factor factor^T and are independent."""
    n, d = noise.shape
    whiten = np.linalg.inv(factor)
    # einsum, not BLAS, whose threads wait for each other on a busy machine
    moments = whiten @ np.einsum("id,jd->ij", noise, noise) @ whiten.T / d
    statistic = d * (np.trace(moments) - np.linalg.slogdet(moments)[1] - n)
    assert statistic < covariance_limit(n)
    neighbours = np.trace(whiten @ np.einsum("id,jd->ij", noise[:, 1:], noise[:, :-1]) @ whiten.T)
    assert abs(neighbours) / (n * (d - 1)) ** 0.5 < stats.norm.isf(ALARM / 2)


def detection(truth, claim):
    """Probability that noise of covariance truth truth^T fails the test for claim claim^T."""
    white = np.linalg.solve(claim, truth)
    q = white @ white.T
    n = len(q)
    mean = COLUMNS * (np.trace(q) - np.linalg.slogdet(q)[1] - n)
    deviation = (2 * COLUMNS * ((q - np.eye(n)) ** 2).sum()) ** 0.5
    return stats.norm.sf(covariance_limit(n), mean, deviation)


def noise_matrix(m):
    """The stream's noise in two leaves, side by side: shape (steps, columns)."""
    half = COLUMNS // 2
    s = stream(m, [torch.zeros(half), torch.zeros(half // 4, 4)])
    return np.array([np.concatenate([x.double().flatten().numpy() for x in row]) for row in rows(s)])


class TestCovariance:
    def test_is_the_one_that_is_accounted(self, name):
        # sigma^2 zeta^2 sens^2 N N^T, with every factor written out
        m = mechanism(name)
        noising = np.linalg.inv(m.strategy.dense())
        sens = bg.sensitivity(m.strategy, m.participation)
        factor = 1.3 * CLIP * sens * noising
        noise = noise_matrix(m)
        check_covariance(noise, factor)

        wrong = {
            "scale 5 % too small": 0.95 * factor,
            "scale 5 % too large": 1.05 * factor,
            "sensitivity forgotten": factor / sens,
            "clip norm forgotten": factor / CLIP,
            "correlation forgotten": 1.3 * CLIP * sens * np.eye(m.steps),
            "correlation of C": 1.3 * CLIP * sens * m.strategy.dense(),
            "signs of N flipped": factor * (-1.0) ** np.subtract.outer(np.arange(m.steps), np.arange(m.steps)),
        }
        if name == "identity":
            for same in ("correlation forgotten", "correlation of C", "signs of N flipped"):
                del wrong[same]
        for what, claim in wrong.items():
            assert detection(factor, claim) >= 0.999, what
            with pytest.raises(AssertionError):
                check_covariance(noise, claim)

    def test_a_wrong_stream_fails_as_well(self):
        # the same, with the fault in the noise and not in the claim
        m = mechanism("lambda_cgd")
        factor = m.noise_scale(CLIP) * m.strategy.noising()
        white = np.linalg.solve(factor, noise_matrix(m))
        check_covariance(factor @ white, factor)
        flipped = m.noise_scale(CLIP) * np.abs(m.strategy.noising())
        for wrong in (0.95 * factor, factor / m.sensitivity, flipped):
            assert detection(wrong, factor) >= 0.999
            with pytest.raises(AssertionError):
                check_covariance(wrong @ white, factor)
        repeated = np.repeat(white[:, ::2], 2, axis=1)  # every element's noise used twice
        with pytest.raises(AssertionError):
            check_covariance(factor @ repeated, factor)
        again = white.copy()
        again[3] = again[2]  # raw noise of one step used in the next
        with pytest.raises(AssertionError):
            check_covariance(factor @ again, factor)

    def test_the_limit_has_the_stated_false_alarm(self):
        # The quantile at 1 % can be checked by simulation: 2000 draws of Wishart matrices, 20 expected above it;
        # P(Binomial(2000, 0.01) > 47) < 1e-6.
        n, draws = 6, 2000
        rng = np.random.default_rng(5)
        moments = stats.wishart(COLUMNS, np.eye(n)).rvs(draws, random_state=rng) / COLUMNS
        trace = np.trace(moments, axis1=1, axis2=2)
        statistic = bartlett(n) * COLUMNS * (trace - np.linalg.slogdet(moments)[1] - n)
        above = int((statistic > stats.chi2.isf(0.01, n * (n + 1) // 2)).sum())
        low, high = stats.binom.ppf(5e-7, draws, 0.01), stats.binom.isf(5e-7, draws, 0.01)
        assert low <= above <= high

    def test_later_noise_cancels_earlier(self):
        # what lambda-CGD is for: the error of the sum of gradients is smaller than DP-SGD's at the same scale
        m = mechanism("lambda_cgd", 1.0)
        noise = noise_matrix(m) / m.noise_scale(CLIP)
        sums = np.cumsum(noise, axis=0).std(axis=1)
        expected = np.linalg.norm(np.tril(np.ones((m.steps, m.steps))) @ m.strategy.noising(), axis=1)
        # A standard deviation of 20,000 normals is off by 1 / sqrt(40,000) = 0.5 %; 3 % is 6 of those.
        np.testing.assert_allclose(sums, expected, rtol=0.03)
        assert all(b < 1.2 for b in sums) and all(b > a for a, b in pairwise(expected))
