"""The secret that all noise is a function of."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from bluegrad import _checks

_BYTES = 16


@dataclass(frozen=True)
class NoiseKey:
    """128 secret bits; whoever knows them can subtract the noise. Never printed, never in a ledger.

    Use a key for one training run only: the same key with other gradients would reveal their difference.

    Args:
        secret: 16 bytes from a secure source; `generate` draws them.

    Raises:
        ValueError: not 16 bytes.

    Example:
        >>> NoiseKey.generate()
        NoiseKey(<secret>)
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != _BYTES:
            # the value stays out of the message: it may be a real key of another length
            raise ValueError("secret=<hidden>: must be 16 bytes; use NoiseKey.generate()")

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"

    @classmethod
    def generate(cls) -> NoiseKey:
        """A fresh key from the operating system's secure source."""
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def from_hex(cls, text: str) -> NoiseKey:
        """The key that `hex` wrote.

        Raises:
            ValueError: not 32 hexadecimal digits.
        """
        try:
            return cls(bytes.fromhex(text))
        except (TypeError, ValueError):
            raise ValueError("key=<hidden>: must be 32 hexadecimal digits; it comes from a checkpoint") from None

    def hex(self) -> str:
        """32 hexadecimal digits, for a checkpoint (which is then as secret as the key)."""
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
