"""Strategies C by their literature names; every factory returns a frozen `Strategy`."""

from bluegrad.strategy.base import Strategy
from bluegrad.strategy.buffered import buffered_toeplitz
from bluegrad.strategy.circulant import fourier
from bluegrad.strategy.matrix import banded, dense, full_batch
from bluegrad.strategy.named import (
    banded_inverse_square_root,
    banded_square_root,
    lambda_cgd,
    nu_dp_ftrl,
    square_root,
)
from bluegrad.strategy.series import banded_inverse_toeplitz, identity, toeplitz
from bluegrad.strategy.storage import load_strategy, save_strategy
from bluegrad.strategy.tree import tree_aggregation
from bluegrad.strategy.wrappers import column_normalized, stamped

FACTORIES = (
    "identity",
    "lambda_cgd",
    "nu_dp_ftrl",
    "square_root",
    "banded_square_root",
    "banded_inverse_square_root",
    "toeplitz",
    "banded_inverse_toeplitz",
    "buffered_toeplitz",
    "banded",
    "full_batch",
    "dense",
    "tree_aggregation",
    "fourier",
    "stamped",
    "column_normalized",
)

__all__ = [
    "FACTORIES",
    "Strategy",
    "banded",
    "banded_inverse_square_root",
    "banded_inverse_toeplitz",
    "banded_square_root",
    "buffered_toeplitz",
    "column_normalized",
    "dense",
    "fourier",
    "full_batch",
    "identity",
    "lambda_cgd",
    "load_strategy",
    "nu_dp_ftrl",
    "save_strategy",
    "square_root",
    "stamped",
    "toeplitz",
    "tree_aggregation",
]
