import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]
Uint32s = NDArray[np.uint32]
Int32s = NDArray[np.int32]

def instruction_sets() -> list[str]: ...
def philox(counters: Uint32s, key: Uint32s, out: Uint32s) -> None: ...
def accumulate(
    out: Float32s, factors: Float32s, streams: Uint32s, start: int, threads: int, block: int, instruction_set: str
) -> None: ...
def advance(
    out: Float32s,
    start: int,
    rows: Float32s,
    first: int,
    scale: float,
    stream: Uint32s,
    code: Int32s,
    weights: Float32s,
    inputs: Int32s,
    results: Int32s,
    output: int,
    registers: int,
    threads: int,
    block: int,
    instruction_set: str,
) -> None: ...
def words(out: Uint32s, stream: Uint32s, start: int, instruction_set: str) -> None: ...
def transform(
    first: Uint32s, second: Uint32s, radius: Float32s, cosine: Float32s, sine: Float32s, instruction_set: str
) -> None: ...
def cipher_normals(words: NDArray[np.uint64], out: Float32s, instruction_set: str) -> None: ...
