"""Noise kernel: known answers, scalar oracle, bits that never move, and statistics with the power to object."""

import hashlib
import os
import signal
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import stats

from bluegrad.noise import kernel
from bluegrad.noise.kernel import NOISE, SAMPLING, add_weighted_normals, normals, philox4x32, words
from oracles import philox_oracle as oracle

KEY = bytes.fromhex("243f6a8885a308d313198a2e03707344")
FALSE_ALARM = 1e-6


def transform(radius_words, angle_words):
    """Radius of the first words, cosine and sine of the second."""
    first, second = (np.array(w, dtype=np.uint64).astype(np.uint32) for w in (radius_words, angle_words))
    return kernel.choose(None).transform(first, second)


def text(values):
    """Bits of 32-bit values in hexadecimal."""
    return " ".join(f"{bits:08x}" for bits in values.view(np.uint32))


def weighted(count, weights, *, start=0, step=9, scale=1.0, **options):
    out = np.zeros(count, np.float32)
    add_weighted_normals(out, weights, key=KEY, step=step, leaf=3, start=start, scale=scale, **options)
    return out


class TestBits:
    @pytest.mark.parametrize(
        "counter, key, answer",
        [
            ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
            ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
            ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
        ],
    )
    def test_known_answers(self, counter, key, answer):
        counter, key, answer = ([int(word, 16) for word in text.split()] for text in (counter, key, answer))
        assert philox4x32(counter, key).tolist() == answer
        assert list(oracle.philox(tuple(counter), tuple(key))) == answer

    def test_philox_is_vectorised(self):
        counters = np.random.default_rng(1).integers(0, 1 << 32, (3, 5, 4), dtype=np.uint32)
        out = philox4x32(counters, (7, 1 << 31))
        assert out.dtype == np.uint32 and out.shape == counters.shape
        for at in np.ndindex(3, 5):
            assert tuple(out[at]) == oracle.philox(tuple(map(int, counters[at])), (7, 1 << 31))
        assert philox4x32(np.empty((0, 4), np.uint32), (0, 0)).shape == (0, 4)

    def test_words_match_the_oracle(self):
        rng = np.random.default_rng(2)
        starts = [0, 1, (1 << 34) - 3, (1 << 63) - 2, (1 << 64) - 6, *map(int, rng.integers(0, 1 << 62, 20))]
        for start in starts:
            key = rng.bytes(16)
            step, leaf, domain = int(rng.integers(1 << 32)), int(rng.integers(1 << 24)), int(rng.integers(1 << 8))
            got = words(key, domain=domain, step=step, leaf=leaf, start=start, count=6)
            assert got.tolist() == [oracle.word(key, domain, step, leaf, start + i) for i in range(6)]

    def test_golden_words(self):
        at = {"step": 1234567, "leaf": 89, "start": (1 << 40) + 1, "count": 5}
        noise, sampling = words(KEY, domain=NOISE, **at), words(KEY, domain=SAMPLING, **at)
        assert text(noise) == GOLDEN_WORDS and text(sampling) == GOLDEN_SAMPLING

    def test_golden_normals(self):
        z = normals(KEY, step=1234567, leaf=89, start=(1 << 40) + 1, count=8)
        assert text(z) == GOLDEN_NORMALS
        assert [text(part) for part in transform(CORNERS, CORNERS)] == GOLDEN_CORNERS

    def test_golden_weighted_sum(self):
        z = weighted(5, [1.0, -0.9, 0.1], start=2, scale=1.7)
        assert text(z) == GOLDEN_WEIGHTED
        many = weighted(1 << 16, [1.0, -0.9, 0.1], start=12345, scale=1.7)
        assert hashlib.sha256(many.astype("<f4").tobytes()).hexdigest()[:16] == GOLDEN_DIGEST


CORNERS = [
    0, 1, 2, (1 << 29) - 1, 1 << 29, 1 << 30, 0x5A82799A, 0xB504F333, 1 << 31, 0xE0000000, 0xFFFFFF00, 0xFFFFFFFF,
]  # fmt: skip
GOLDEN_WORDS = "b11ba28c ed3b8093 144e0011 3e84daf9 e50ce19a"
GOLDEN_SAMPLING = "38a516da dff0041a 736ea1f2 d99e8ebc 5103f783"
GOLDEN_NORMALS = "bf9bec7f 3eaf7e59 3e3efea8 3fa9997a bf840524 3f8beb90 c03da3bc beaaba95"
GOLDEN_CORNERS = [
    "40d87047 40d32d4c 40d0af6c 40028473 40028473 3fd5224d 3fb89456 3f55224d 3f96b55f 3f044bc5 39b504f3 80000000",
    "3f800000 3f800000 3f800000 3f3504f3 3f3504f3 80000000 bf1b0f26 be88529f bf800000 3f3504f3 3f800000 3f800000",
    "00000000 30c90fdb 31490fdb 3f3504f3 3f3504f3 3f800000 3f4bb28c bf76c251 80000000 bf3504f3 b4c90fdb b0c90fdb",
]
GOLDEN_WEIGHTED = "3f24afea 3f80d8e6 befe10f8 402a91dc 3fb68652"
GOLDEN_DIGEST = "31cd7d970620570c"


class TestTransform:
    # Largest |z - reference| is 5e-7 radii: radius and direction are each within 1.3e-7, their product rounds once.
    tolerance = 5e-7

    def test_normals_match_the_oracle(self):
        rng = np.random.default_rng(3)
        for start in [0, 3, (1 << 64) - 4, *map(int, rng.integers(0, 1 << 62, 40))]:
            key, step, leaf = rng.bytes(16), int(rng.integers(1 << 32)), int(rng.integers(1 << 24))
            got = normals(key, step=step, leaf=leaf, start=start, count=4)
            assert got.dtype == np.float32
            for i, z in enumerate(got):
                reference, radius = oracle.normal(key, step, leaf, start + i)
                assert abs(float(z) - reference) <= self.tolerance * radius

    def test_edge_words_match_the_oracle(self):
        borders = [quadrant * (1 << 30) + half for quadrant in range(4) for half in (0, 1 << 29)]
        edges = sorted({(w + nudge) % (1 << 32) for w in borders for nudge in (-257, -1, 0, 1, 257)})
        # The mantissa splits at u = sqrt(1/2) 2^-e, so at words 0xB504F333 >> e.
        edges += [(0xB504F333 >> e) + nudge for e in range(31) for nudge in (0, 1)]
        edges += [1 << 31, 0xFFFFFF00, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFEFF, 5, 12345, 987654321]
        radius, cosine, sine = transform(edges, edges)
        for i, w in enumerate(edges):
            exact, _, _ = oracle.box_muller(w, 0)
            assert abs(float(radius[i]) - exact) <= 2e-7 * exact
            _, x, y = oracle.box_muller(0, w)
            longest, _, _ = oracle.box_muller(0, 0)
            assert abs(float(cosine[i]) - x / longest) <= 1e-7 and abs(float(sine[i]) - y / longest) <= 1e-7

    def test_extremes(self):
        radius, cosine, sine = transform([0, 0xFFFFFFFF, 1 << 31, 0], [0, 1 << 30, 1 << 31, 3 << 30])
        assert radius[0] == np.float32(np.sqrt(66 * np.log(2)))  # sqrt(-2 ln 2^-33) = 6.76
        assert radius[1] == 0.0
        assert cosine.tolist() == [1.0, 0.0, -1.0, 0.0] and sine.tolist() == [0.0, 1.0, 0.0, -1.0]

    def test_the_far_tail_has_its_share_of_words(self):
        # P(radius > r) = exp(-r^2 / 2), so 2^32 times that many words, to the rounding of u.
        few = np.arange(1 << 20)
        radius = transform(few, few)[0].astype(float)
        coarse = np.sqrt(-2 * np.log((few // 256 + 1) / 2.0**24))  # 24-bit uniforms, as generators of floats give
        for r in (4.5, 5.0, 5.5, 5.8, 6.0, 6.25, 6.5):
            share = 2.0**32 * np.exp(-r * r / 2)
            assert abs((radius > r).sum() - share) <= 1
            assert abs((coarse > r).sum() - share) > 1

    def test_all_words_in_strides_are_finite(self):
        w = np.arange(0, 1 << 32, 4099)
        check_range(w)
        assert max(radius_error(w)) <= 1.4e-7 and max(direction_error(w)) <= 1.0e-7

    @pytest.mark.slow
    def test_every_word_is_finite(self):
        for first in range(0, 1 << 32, 1 << 20):
            check_range(np.arange(first, first + (1 << 20)))

    @pytest.mark.slow
    def test_every_radius_and_direction_is_accurate(self, record_property):
        # Both see a word through its float32 value alone (of its distance from a quarter turn, for the angle),
        # so one word for each float32 covers all 2^32. Reached: radius 1.30e-7 relative, direction 8.5e-8.
        radius = max(max(radius_error(w)) for w in each_float32(32))
        record_property("relative error of the radius", radius)
        direction = 0.0
        for w in each_float32(29):
            for quadrant in range(4):
                for sign in (1, -1):
                    direction = max(direction, *direction_error((quadrant * (1 << 30) + sign * w) % (1 << 32)))
        record_property("absolute error of the direction", direction)
        assert radius <= 1.3e-7 and direction <= 8.5e-8


def each_float32(bits, chunk=1 << 20):
    """Every integer below 2^bits that float32 holds exactly."""
    for low in range(0, 1 << 24, chunk):
        yield np.arange(low, low + chunk)
    for exponent in range(24, bits):
        stride = 1 << (exponent - 23)
        for low in range(1 << exponent, 2 << exponent, chunk * stride):
            yield np.arange(low, low + chunk * stride, stride)


def check_range(w):
    radius, cosine, sine = transform(w, w)
    assert radius.min() >= 0.0 and radius.max() < 6.77  # false for NaN
    norm = cosine * cosine + sine * sine
    assert norm.min() > 1 - 3e-7 and norm.max() < 1 + 3e-7


def radius_error(w):
    u = (w.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)).astype(float)
    reference = np.sqrt(-2 * np.log(u))
    return np.abs(transform(w, w)[0] - reference) / np.where(reference == 0, 1, reference)


def direction_error(w):
    _, cosine, sine = transform(w, w)
    angle = w.astype(float) * (2 * np.pi / 2.0**32)
    return np.maximum(np.abs(cosine - np.cos(angle)), np.abs(sine - np.sin(angle)))


class TestPureFunction:
    def test_slices_agree_with_the_whole(self):
        whole = normals(KEY, step=9, leaf=3, start=0, count=5000)
        for start, count in [(0, 1), (1, 1), (2, 3), (3, 4), (4, 4), (7, 1000), (4093, 907), (4999, 1), (17, 0)]:
            part = normals(KEY, step=9, leaf=3, start=start, count=count)
            np.testing.assert_array_equal(part.view(np.uint32), whole[start : start + count].view(np.uint32))
            both = words(KEY, domain=NOISE, step=9, leaf=3, start=start, count=count)
            np.testing.assert_array_equal(
                both, words(KEY, domain=NOISE, step=9, leaf=3, start=0, count=5000)[start:][:count]
            )

    @pytest.mark.parametrize("start", [0, 3, (1 << 34) - 4321])
    def test_threads_and_blocks_change_no_bit(self, start):
        count, weights = 100_003, [1.0, -0.9, 0.3]
        whole = weighted(count, weights, start=start, threads=1)
        for threads, block in [(1, 4096), (2, 4096), (3, 1000), (16, 20_001), (40, 1 << 14), (None, 1 << 16)]:
            again = weighted(count, weights, start=start, threads=threads, block=block)
            np.testing.assert_array_equal(whole.view(np.uint32), again.view(np.uint32))
        few = slice(0, 777)
        np.testing.assert_array_equal(whole[few], weighted(777, weights, start=start, threads=4, block=4))

    def test_adds_in_the_stated_order(self):
        weights, scale, count = [0.7, -0.61, 0.013, 1e-3], 1.3, 1000
        before = np.linspace(-3, 3, count, dtype=np.float32)
        out = before.copy()
        add_weighted_normals(out, weights, key=KEY, step=9, leaf=3, start=5, scale=scale)
        z = [normals(KEY, step=9 - j, leaf=3, start=5, count=count) for j in range(4)]
        factors = [np.float32(w * scale) for w in weights]
        total = factors[0] * z[0]
        for factor, sample in zip(factors[1:], z[1:]):
            total = total + factor * sample
        np.testing.assert_array_equal(out, before + total)
        exact = before + scale * np.asarray(weights) @ np.array(z, dtype=float)
        # Four products, three sums and one more, each rounded to 2^-24 of at most 13.
        assert np.abs(out - exact).max() <= 8 * 13 * 2.0**-24

    def test_writes_through_a_view_and_nowhere_else(self):
        leaf = np.zeros(100, np.float32)
        add_weighted_normals(leaf[10:31], [1.0], key=KEY, step=9, leaf=3, start=10, scale=1.0)
        assert not leaf[:10].any() and not leaf[31:].any()
        np.testing.assert_array_equal(leaf[10:31], normals(KEY, step=9, leaf=3, start=10, count=21))

    def test_scratch_is_bounded(self):
        out = np.zeros(1 << 21, np.float32)  # 8 MB
        tracemalloc.start()
        try:
            add_weighted_normals(
                out, [1.0, -0.9], key=KEY, step=9, leaf=3, start=0, scale=1.0, threads=2, block=1 << 15
            )
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 3 << 20

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_threads_survive_a_fork(self):
        draw = lambda: weighted(50_000, [1.0, 0.5], threads=3, block=4096).tobytes()  # noqa: E731
        expected = draw()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork of a threaded process
            child = os.fork()
        if child == 0:
            signal.alarm(30)  # a deadlock ends the child, and so fails the test
            os._exit(0 if draw() == expected else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert draw() == expected


class TestDistinctness:
    count = 64

    def draw(self, key=KEY, domain=NOISE, step=5, leaf=7, start=4000):
        return words(key, domain=domain, step=step, leaf=leaf, start=start, count=self.count)

    def assert_unrelated(self, left, right):
        """The bits that differ are Binomial(32 count, 1/2); two-sided limit 1e-8, as 200 pairs are looked at."""
        differ = sum(int(x).bit_count() for x in left ^ right)
        law = stats.binom(32 * self.count, 0.5)
        assert law.ppf(1e-8 / 2) <= differ <= law.isf(1e-8 / 2)

    @pytest.mark.parametrize("bit", range(128))
    def test_every_key_bit_matters(self, bit):
        flipped = (int.from_bytes(KEY, "little") ^ 1 << bit).to_bytes(16, "little")
        self.assert_unrelated(self.draw(), self.draw(key=flipped))

    @pytest.mark.parametrize("name, bits", [("step", 32), ("leaf", 24), ("domain", 8), ("start", 62)])
    def test_every_coordinate_bit_matters(self, name, bits):
        base = {"step": 5, "leaf": 7, "domain": NOISE, "start": 4000}
        for bit in range(7 if name == "start" else 0, bits):
            self.assert_unrelated(self.draw(), self.draw(**{name: base[name] ^ 1 << bit}))

    def test_no_two_streams_share_a_key_and_counter(self):
        steps, leaves, domains = (
            [0, 1, 2, 255, 1 << 24, (1 << 32) - 1],
            [0, 1, 255, 1 << 16, (1 << 24) - 1],
            [0, 1, 255],
        )
        streams = {
            kernel._streams(kernel.choose(None), KEY, domain, [step], leaf).tobytes()
            for step in steps
            for leaf in leaves
            for domain in domains
        }
        assert len(streams) == len(steps) * len(leaves) * len(domains)

    def test_identical_words_fail_the_comparison(self):
        with pytest.raises(AssertionError):
            self.assert_unrelated(self.draw(), self.draw())


N = 1 << 22


@pytest.fixture(scope="module")
def samples():
    """Neighbouring streams as the rows of a table: this one, the next step, the next leaf."""
    at = [(100, 0), (101, 0), (100, 1)]
    return np.stack([normals(KEY, step=step, leaf=leaf, start=0, count=N) for step, leaf in at]).astype(float)


def two_sided(law, value):
    return min(1.0, 2 * min(law.cdf(value), law.sf(value - 1 if hasattr(law, "pmf") else value)))


def p_mean(z):
    return two_sided(stats.norm(0, z.size**-0.5), z.mean())


def p_variance(z):
    return two_sided(stats.chi2(z.size), (z * z).sum())


def p_third(z):  # the mean of z^3 has variance 15 / size
    return two_sided(stats.norm(0, (15 / z.size) ** 0.5), (z**3).mean())


def p_fourth(z):  # the mean of z^4 has variance (105 - 9) / size
    return two_sided(stats.norm(3, (96 / z.size) ** 0.5), (z**4).mean())


def p_kolmogorov(z):
    cdf = stats.norm.cdf(np.sort(z))
    steps = np.arange(z.size + 1) / z.size
    return stats.kstwo.sf(max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()), z.size)


def p_bins(z, bins=1024):
    counts = np.bincount((stats.norm.cdf(z) * bins).astype(int), minlength=bins)
    return two_sided(stats.chi2(bins - 1), ((counts - z.size / bins) ** 2).sum() / (z.size / bins))


def p_tail(limit):
    return lambda z: two_sided(stats.binom(z.size, 2 * stats.norm.sf(limit)), (np.abs(z) > limit).sum())


def p_product(x, y):  # a mean of products of independent standard variables
    return two_sided(stats.norm(0, x.size**-0.5), (x * y).mean())


def short_tailed(z):
    """What 12-bit uniforms would give: no radius beyond sqrt(-2 ln 2^-12) = 4.08."""
    return np.where(np.abs(z) > 4.08, 0.0, z)


class TestStatistics:
    @pytest.mark.parametrize(
        "p_value, spoil",
        [
            pytest.param(p_mean, lambda z: z + 0.01, id="mean"),
            pytest.param(p_variance, lambda z: 1.01 * z, id="variance"),
            pytest.param(p_third, lambda z: z + 0.01 * (z * z - 1), id="third moment"),
            pytest.param(p_fourth, lambda z: 1.01 * z, id="fourth moment"),
            pytest.param(p_kolmogorov, lambda z: 1.01 * z, id="Kolmogorov-Smirnov"),
            pytest.param(p_bins, lambda z: 1.01 * z, id="chi-square of bins, scale"),
            pytest.param(p_bins, lambda z: np.round(z * 512) / 512, id="chi-square of bins, grid"),
            pytest.param(p_tail(3.0), lambda z: 1.01 * z, id="tail 3, scale"),
            pytest.param(p_tail(4.0), lambda z: 1.05 * z, id="tail 4, scale"),
            pytest.param(p_tail(4.0), lambda z: np.clip(z, -4, 4), id="tail 4, clipped"),
            pytest.param(p_tail(4.5), short_tailed, id="tail 4.5, short"),
        ],
    )
    def test_law(self, samples, p_value, spoil):
        # Where a limit is asymptotic, 2^22 samples make it exact to a few percent of 1e-6.
        z = samples[0]
        assert p_value(z) > FALSE_ALARM
        assert p_value(spoil(z)) < FALSE_ALARM

    @pytest.mark.parametrize(
        "pick",
        [
            pytest.param(lambda s: (s[0, 0::2], s[0, 1::2]), id="cosine and sine"),
            pytest.param(lambda s: (s[0, 1:-1:2], s[0, 2::2]), id="across pairs"),
            pytest.param(lambda s: (s[0, :-4], s[0, 4:]), id="across blocks"),
            pytest.param(lambda s: (s[0], s[1]), id="steps"),
            pytest.param(lambda s: (s[0], s[2]), id="leaves"),
            pytest.param(lambda s: (s[1], s[2]), id="step and leaf"),
        ],
    )
    def test_no_correlation(self, samples, pick):
        x, y = pick(samples)
        assert p_product(x, y) > FALSE_ALARM
        assert p_product(x, y + 0.01 * x) < FALSE_ALARM
        square = lambda z: (z * z - 1) / 2**0.5  # noqa: E731
        assert p_product(square(x), square(y)) > FALSE_ALARM
        assert p_product(square(x), square(y * (0.99 + 0.01 * x * x))) < FALSE_ALARM

    def test_words_are_uniform_in_every_bit(self):
        w = words(KEY, domain=SAMPLING, step=1, leaf=0, start=0, count=1 << 18)
        ones = np.unpackbits(w.view(np.uint8)).reshape(-1, 32).sum(0)
        law = stats.binom(w.size, 0.5)
        assert all(two_sided(law, count) > FALSE_ALARM / 32 for count in ones)
        assert two_sided(law, int(0.51 * w.size)) < FALSE_ALARM / 32


class TestArguments:
    @pytest.mark.parametrize(
        "change, name",
        [
            ({"key": bytes(15)}, "key"),
            ({"key": bytearray(16)}, "key"),
            ({"key": "0" * 16}, "key"),
            ({"step": -1}, "step"),
            ({"step": 1 << 32}, "step"),
            ({"step": 1.0}, "step"),
            ({"leaf": 1 << 24}, "leaf"),
            ({"leaf": True}, "leaf"),
            ({"start": -1}, "start"),
            ({"start": (1 << 64) - 3}, "start"),
        ],
    )
    def test_all_refuse(self, change, name):
        at = {"key": KEY, "step": 3, "leaf": 1, "start": 0, **change}
        key = at.pop("key")
        with pytest.raises(ValueError, match=name):
            words(key, domain=NOISE, count=4, **at)
        with pytest.raises(ValueError, match=name):
            normals(key, count=4, **at)
        out = np.zeros(4, np.float32)
        with pytest.raises(ValueError, match=name):
            add_weighted_normals(out, [1.0], key=key, scale=1.0, **at)
        assert not out.any()

    def test_a_message_never_shows_the_key(self):
        secret = b"secret" * 3
        with pytest.raises(ValueError) as caught:
            normals(secret, step=0, leaf=0, start=0, count=1)
        assert "secret" not in str(caught.value).replace("secure", "")

    def test_words_and_normals_refuse_a_count(self):
        for count in (-1, 1.5):
            with pytest.raises(ValueError, match="count"):
                normals(KEY, step=0, leaf=0, start=0, count=count)
        with pytest.raises(ValueError, match="domain"):
            words(KEY, domain=256, step=0, leaf=0, start=0, count=1)

    @pytest.mark.parametrize(
        "change, name",
        [
            ({"step": 1, "weights": [1.0, 1.0, 1.0]}, "weights"),
            ({"weights": []}, "weights"),
            ({"weights": [np.nan]}, "weights"),
            ({"weights": [1e30], "scale": 1e10}, "weights"),
            ({"scale": np.inf}, "scale"),
            ({"threads": 0}, "threads"),
            ({"block": 3}, "block"),
        ],
    )
    def test_weighted_refuses(self, change, name):
        with pytest.raises(ValueError, match=name):
            weighted(4, **{"weights": [1.0], "step": 3, **change})

    @pytest.mark.parametrize(
        "out",
        [
            np.zeros(4),
            np.zeros((2, 2), np.float32),
            np.zeros(8, np.float32)[::2],
            [0.0],
            np.frombuffer(bytes(16), "f4"),
        ],
    )
    def test_weighted_refuses_an_output(self, out):
        with pytest.raises(ValueError, match="out="):
            add_weighted_normals(out, [1.0], key=KEY, step=0, leaf=0, start=0, scale=1.0)

    def test_philox_refuses(self):
        for counters, key in [([0, 0, 0], (0, 0)), (3, (0, 0)), ([0.0] * 4, (0, 0)), ([0, 0, 0, 1 << 32], (0, 0))]:
            with pytest.raises(ValueError, match="counter_words"):
                philox4x32(counters, key)
        for key in [(0,), (0, 0, 0), (-1, 0), (0, 1 << 32)]:
            with pytest.raises(ValueError, match="key_words"):
                philox4x32([0, 0, 0, 0], key)
