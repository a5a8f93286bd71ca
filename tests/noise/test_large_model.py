"""Noise for a model that fills the memory: no second copy of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# 300 million parameters in leaves of very unequal sizes; prints the peak beyond the gradients, in gradients' sizes.
SCRIPT = """
import resource, torch, bluegrad as bg
sizes = [250_000_000, 49_000_000, 999_999, 1]
mechanism = bg.Mechanism({strategy}, bg.SinglePass(4), noise_multiplier=1.0)
gradients = [torch.zeros(size) for size in sizes]
stream = bg.NoiseStream(mechanism, gradients, clip_norm=1.0, key=bg.NoiseKey.generate())
bg.NoiseStream(mechanism, [torch.zeros(1000)], clip_norm=1.0, key=bg.NoiseKey.generate()).next()
for gradient in gradients:
    gradient.fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream.add_to(gradients)
stream.add_to(gradients)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert all(bool((gradient != 1.0).any()) for gradient in gradients)
print((after - before) * 1024 / (4 * sum(sizes)))
"""


def beyond_the_gradients(strategy: str) -> float:
    code = SCRIPT.format(strategy=strategy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
def test_lambda_cgd_needs_a_chunk_beyond_the_gradients():
    assert beyond_the_gradients("bg.lambda_cgd(4, 0.9)") < 0.05
    assert beyond_the_gradients("bg.toeplitz([1.0, 0.5], 4)") > 0.9, "a copy of the model would show"
