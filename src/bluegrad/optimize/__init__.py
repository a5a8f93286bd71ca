"""Best member of a strategy family for a workload and a participation."""

from bluegrad.optimize._journal import Journal
from bluegrad.optimize._record import Optimization
from bluegrad.optimize.approximate import approximated
from bluegrad.optimize.buffers import buffered_toeplitz
from bluegrad.optimize.columns import banded
from bluegrad.optimize.dense import dense
from bluegrad.optimize.inverse import banded_inverse
from bluegrad.optimize.restarts import stamps
from bluegrad.optimize.scalar import lambda_cgd, nu_dp_ftrl
from bluegrad.optimize.series import toeplitz

__all__ = [
    "Journal",
    "Optimization",
    "approximated",
    "banded",
    "banded_inverse",
    "buffered_toeplitz",
    "dense",
    "lambda_cgd",
    "nu_dp_ftrl",
    "stamps",
    "toeplitz",
]
