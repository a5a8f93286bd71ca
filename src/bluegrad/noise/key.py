"""The secret that all noise is a function of."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from bluegrad import _checks
from bluegrad.noise import _cipher
from bluegrad.noise.kernel import KEY_BYTES

_GENERATORS = {
    KEY_BYTES: "Philox4x32-10, Box-Muller in float32",
    _cipher.KEY_BYTES: "AES-256 in counter mode, Box-Muller in float64, rounded to float32",
}


@dataclass(frozen=True)
class NoiseKey:
    """The secret; whoever knows it can subtract the noise. Never printed, never in a ledger.

    Use a key for one training run only: the same key with other gradients would reveal their difference.

    128 bits drive Philox4x32-10: fast, statistically sound, but not a cipher. 256 bits drive AES-256 in counter mode:
    who can't tell AES-256 from random permutations can't tell the bits from truly random ones either, as long as a run
    draws far fewer than 2^65 normals. In both, the same (step, leaf, element) gives the same noise, whatever the order.
    Neither claims that float32 sums are hardened against floating-point attacks (Mironov 2012), nor against who reads
    the memory of the process.

    Args:
        secret: 16 or 32 bytes from a secure source; `generate` draws them.

    Raises:
        ValueError: not 16 or 32 bytes, or 32 without the package that has the cipher.

    Example:
        >>> NoiseKey.generate()
        NoiseKey(<secret>)
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        # the value stays out of the messages: it may be a real key of another length
        if not isinstance(self.secret, bytes) or len(self.secret) not in _GENERATORS:
            raise ValueError("secret=<hidden>: must be 16 or 32 bytes; use NoiseKey.generate()")
        if len(self.secret) == _cipher.KEY_BYTES and not _cipher.available():
            raise ValueError("secret=<hidden>: 32 bytes need the package cryptography; pip install 'bluegrad[secure]'")

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"

    @classmethod
    def generate(cls, *, secure: bool = False) -> NoiseKey:
        """A fresh key from the operating system's secure source: 128 bits for Philox, or 256 for a cipher.

        Raises:
            ValueError: secure, without the package that has the cipher.
        """
        return cls(secrets.token_bytes(_cipher.KEY_BYTES if secure else KEY_BYTES))

    @property
    def generator(self) -> str:
        """How the key's noise is drawn, for a ledger."""
        return _GENERATORS[len(self.secret)]

    @classmethod
    def from_hex(cls, text: str) -> NoiseKey:
        """The key that `hex` wrote.

        Raises:
            ValueError: not 32 or 64 hexadecimal digits.
        """
        try:
            return cls(bytes.fromhex(text))
        except (TypeError, ValueError):
            raise ValueError("key=<hidden>: must be 32 or 64 hexadecimal digits; it comes from a checkpoint") from None

    def hex(self) -> str:
        """32 or 64 hexadecimal digits, for a checkpoint (which is then as secret as the key)."""
        return self.secret.hex()


def require_key(key: object) -> NoiseKey:
    """Return `key`, refusing anything but a NoiseKey.

    Raises:
        ValueError: not a NoiseKey; integer seeds in particular.
    """
    if not isinstance(key, NoiseKey):
        raise _checks.fail(
            "key", type(key).__name__, "must be a NoiseKey", "use NoiseKey.generate(); a seed isn't a secret"
        )
    return key
