"""Strategies C by their literature names; every factory returns a frozen `Strategy`."""

from bluegrad.strategy.base import Strategy
from bluegrad.strategy.series import (
    banded_inverse_square_root,
    banded_inverse_toeplitz,
    banded_square_root,
    identity,
    lambda_cgd,
    nu_dp_ftrl,
    square_root,
    toeplitz,
)

FACTORIES = (
    "identity",
    "lambda_cgd",
    "nu_dp_ftrl",
    "square_root",
    "banded_square_root",
    "banded_inverse_square_root",
    "toeplitz",
    "banded_inverse_toeplitz",
)

__all__ = [
    "FACTORIES",
    "Strategy",
    "banded_inverse_square_root",
    "banded_inverse_toeplitz",
    "banded_square_root",
    "identity",
    "lambda_cgd",
    "nu_dp_ftrl",
    "square_root",
    "toeplitz",
]
