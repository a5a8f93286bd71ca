"""What `noise.py` runs in an interpreter that has jax-privacy: times of its noise steps, as JSON.

Each privatizer's update is compiled, and may reuse the memory of the gradient and of its state.
Usage: python benchmarks/noise_jax.py ELEMENTS ROUNDS
"""

from __future__ import annotations

import json
import sys
import time

import jax
from jax import numpy as jnp
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz

EARLY = 5


def matrices() -> dict[str, streaming_matrix.StreamingMatrix]:
    """C^-1 of the mechanisms in noise.py."""
    found = {"dp-sgd": streaming_matrix.identity()}
    for bands in (2, 4, 16):
        coefficients = jnp.array([0.5**i for i in range(bands)], jnp.float32)
        found[f"banded, {bands} bands"] = toeplitz.inverse_as_streaming_matrix(coefficients)
    with jax.enable_x64(True):  # it refuses to be built otherwise; its stream is then faster in float32
        buffers = buffered_toeplitz.BufferedToeplitz.build(
            buf_decay=[0.999, 0.99, 0.9, 0.4], output_scale=[0.02, 0.05, 0.15, 0.2]
        )
        single = jax.tree.map(lambda x: x.astype(jnp.float32), buffers)
        found["buffered, 4 buffers"] = single.inverse_as_streaming_matrix()
    return found


def measure(matrix: streaming_matrix.StreamingMatrix, size: int, rounds: int) -> tuple[float, float]:
    """Least wall-clock and processor seconds of an update."""
    privatizer = noise_addition.matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=1)
    gradient = jnp.zeros(size, jnp.float32)
    state = privatizer.init(gradient)
    update = jax.jit(
        lambda gradient, state: privatizer.update(sum_of_clipped_grads=gradient, noise_state=state),
        donate_argnums=(0, 1),
    )
    times = []
    for _ in range(EARLY + rounds):
        began = time.perf_counter(), time.process_time()
        gradient, state = update(gradient, state)
        jax.block_until_ready((gradient, state))
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    wall, processor = zip(*times[EARLY:])
    return min(wall), min(processor)


def main() -> None:
    """Print the times."""
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    print(json.dumps({name: measure(matrix, size, rounds) for name, matrix in matrices().items()}))


if __name__ == "__main__":
    main()
