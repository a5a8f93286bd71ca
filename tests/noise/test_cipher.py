"""Noise from a cipher: an independent AES, 50 digits for the transform, one function of (key, step, leaf, element)."""

import mpmath
import numpy as np
import pytest
from scipy import stats

import bluegrad as bg
from bluegrad.noise import _cipher, kernel
from bluegrad.noise.kernel import NOISE, SAMPLING, add_weighted_normals, normals, words

ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
KEY = bytes(range(100, 132))
NAMES = list(kernel.backends())
each_backend = pytest.mark.parametrize("name", NAMES)


def blocks(domain, step, leaf, block, count):
    """The stream by single encryptions of its counters, in electronic codebook mode."""
    encryptor = ciphers.Cipher(ciphers.algorithms.AES(KEY), ciphers.modes.ECB()).encryptor()
    high = domain.to_bytes(1, "big") + leaf.to_bytes(3, "big") + step.to_bytes(4, "big")
    text = b"".join(high + (block + i).to_bytes(8, "big") for i in range(count))
    return np.frombuffer(encryptor.update(text), "<u8").reshape(count, 2)


def reference(pair):
    """Both normals of a pair of words, in 50 digits."""
    first, second = map(int, pair)
    with mpmath.workdps(50):
        u = (mpmath.mpf(first >> 12) + mpmath.mpf("0.5")) / 2**52
        radius, angle = mpmath.sqrt(-2 * mpmath.log(u)), 2 * mpmath.pi * second / mpmath.mpf(2) ** 64
        return float(radius), float(radius * mpmath.cos(angle)), float(radius * mpmath.sin(angle))


def weighted(name, count=70_001, start=3, threads=1):
    out = np.linspace(-2, 2, count, dtype=np.float32)
    add_weighted_normals(
        out, [1.0, -0.9, 0.3], key=KEY, step=7, leaf=2, start=start, scale=1.7, threads=threads, backend=name
    )
    return out.view(np.uint32)


class TestBits:
    @pytest.mark.parametrize("start", [0, 1, (1 << 34) + 3, (1 << 63) - 6])
    def test_words_are_the_cipher_s(self, start):
        expected = blocks(SAMPLING, 9, 5, start // 4, 8).reshape(-1).view("<u4")[start % 4 :][:25]
        got = words(KEY, domain=SAMPLING, step=9, leaf=5, start=start, count=25)
        np.testing.assert_array_equal(got, expected)

    @each_backend
    @pytest.mark.parametrize("start", [0, 1, (1 << 34) + 3, (1 << 63) - 6])
    def test_normals_are_the_reference_s(self, name, start):
        pairs = [reference(pair) for pair in blocks(NOISE, 9, 5, start // 2, 21)]
        expected = np.array([z for _, *zs in pairs for z in zs])[start % 2 :][:40]
        got = normals(KEY, step=9, leaf=5, start=start, count=40, backend=name)
        # rounded once to float32, but where a tie is nearer than 1e-14
        assert np.abs(got - expected).max() <= 8.6 * 2.0**-24
        assert (got == expected.astype(np.float32)).mean() > 0.97

    def test_the_transform_to_fifteen_digits(self):
        full, edges = 1 << 64, [0, 1, 1 << 12, (1 << 64) - 1, 0xB504F333F9DE6484, 0xB504F333F9DE5000, 1 << 63]
        angles = [(k * (1 << 61) + nudge) % full for k in range(8) for nudge in (-4097, -1, 0, 1, 4097)]
        rng = np.random.default_rng(1)
        pairs = [(u, angle) for u in edges for angle in angles]
        pairs += [tuple(pair) for pair in rng.integers(0, full, (300, 2), dtype=np.uint64)]
        got = _cipher.box_muller(np.array(pairs, np.uint64)).reshape(-1, 2)
        for pair, z in zip(pairs, got):
            radius, *expected = reference(pair)
            assert np.abs(z - expected).max() <= 1e-15 * max(radius, 1e-8)
        assert np.abs(got).max() == pytest.approx(np.sqrt(106 * np.log(2)))

    @each_backend
    def test_all_backends_agree(self, name):
        rng = np.random.default_rng(2)
        words = rng.integers(0, 1 << 64, (100_001, 2), dtype=np.uint64)
        words[:6] = [[0, 0], [2**64 - 1, 2**64 - 1], [1, 1 << 61], [1 << 63, 1 << 62], [5, 3 << 61], [0, 1 << 63]]
        mine, theirs = (kernel.backends()[b].cipher_normals(words) for b in (name, "fallback"))
        np.testing.assert_array_equal(mine.view(np.uint32), theirs.view(np.uint32))
        np.testing.assert_array_equal(weighted(name), weighted("fallback"))

    @each_backend
    def test_slices_and_threads(self, name):
        whole = weighted(name)
        np.testing.assert_array_equal(whole, weighted(name, threads=3))
        z = normals(KEY, step=9, leaf=3, start=0, count=500, backend=name)
        for start, count in [(0, 1), (1, 1), (2, 3), (7, 400), (499, 1), (5, 0)]:
            part = normals(KEY, step=9, leaf=3, start=start, count=count, backend=name)
            np.testing.assert_array_equal(part, z[start : start + count])

    def test_streams_differ(self):
        base = {"domain": NOISE, "step": 5, "leaf": 7, "start": 4000}
        drawn = [words(KEY, count=64, **base)]
        for name, bits in [("domain", 8), ("step", 32), ("leaf", 24), ("start", 62)]:
            for bit in range(7 if name == "start" else 0, bits):
                drawn.append(words(KEY, count=64, **{**base, name: base[name] ^ 1 << bit}))
        assert len({tuple(w) for w in drawn}) == len(drawn)
        drawn += [words(bytes([i]) + KEY[1:], count=64, **base) for i in range(8)]
        assert len(set(np.concatenate(drawn).tolist())) > 64 * len(drawn) - 20


class TestLaw:
    def test_moments_distribution_and_tail(self):
        z = normals(KEY, step=1, leaf=0, start=0, count=1 << 21).astype(float)
        n = z.size
        assert abs(z.mean()) < 5 / n**0.5 and abs((z * z).mean() - 1) < 5 * (2 / n) ** 0.5
        assert stats.kstest(z, "norm").pvalue > 1e-6 and stats.kstest(1.01 * z, "norm").pvalue < 1e-6
        assert abs((z[::2] * z[1::2]).mean()) < 5 / n**0.5
        expected = n * 2 * stats.norm.sf(4.0)
        assert abs((np.abs(z) > 4).sum() - expected) < 5 * expected**0.5


STRATEGIES = {
    "replayed": lambda: bg.lambda_cgd(8, 0.9),
    "kept": lambda: bg.square_root(bg.PrefixSum(40)),
    "recurrent": lambda: bg.toeplitz([1.0, 0.5, 0.25], 8),
}


class TestKey:
    def stream(self, name, key):
        torch = pytest.importorskip("torch")
        mechanism = bg.Mechanism(STRATEGIES[name](), bg.SinglePass(STRATEGIES[name]().steps), 1.0)
        return bg.NoiseStream(mechanism, [torch.zeros(30, 7), torch.zeros(5)], clip_norm=1.0, key=key)

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_a_stream_is_n_z_and_resumes(self, name):
        key = bg.NoiseKey(KEY)
        stream = self.stream(name, key)
        strategy = stream.mechanism.strategy
        z = np.stack([normals(KEY, step=t, leaf=1, start=0, count=5) for t in range(strategy.steps)])
        expected = stream.mechanism.noise_scale(1.0) * strategy.noising() @ z
        noise = [stream.next() for _ in range(3)]
        state = stream.state_dict()
        noise += [stream.next() for _ in range(3)]
        np.testing.assert_allclose(np.stack([x[1].numpy() for x in noise]), expected[:6], atol=2e-5)
        again = self.stream(name, bg.NoiseKey.generate())
        again.load_state_dict(state)
        assert again.generator == key.generator and "AES-256" in again.generator
        for before in noise[3:]:
            for x, y in zip(before, again.next()):
                assert (x == y).all()

    def test_generate(self):
        key = bg.NoiseKey.generate(secure=True)
        assert len(key.secret) == 32 and repr(key) == "NoiseKey(<secret>)" and key != bg.NoiseKey.generate(secure=True)
        assert bg.NoiseKey.from_hex(key.hex()) == key
        assert "Philox" in bg.NoiseKey.generate().generator and len(bg.NoiseKey.generate().secret) == 16

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setattr(_cipher, "ciphers", None)
        with pytest.raises(ValueError, match=r"<hidden>.*bluegrad\[secure\]"):
            bg.NoiseKey.generate(secure=True)
        bg.NoiseKey.generate()
