"""Differentially private PyTorch training with correlated noise.

Names load on first use: planning (strategies, scores, calibration) never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bluegrad import audit as audit
    from bluegrad import optimize as optimize
    from bluegrad import theory as theory
    from bluegrad._checks import Unsupported as Unsupported
    from bluegrad.accounting import Bound as Bound
    from bluegrad.accounting import calibrate as calibrate
    from bluegrad.accounting import delta as delta
    from bluegrad.accounting import epsilon as epsilon
    from bluegrad.accounting import renyi as renyi
    from bluegrad.accounting import zcdp as zcdp
    from bluegrad.mechanism import Mechanism as Mechanism
    from bluegrad.noise.key import NoiseKey as NoiseKey
    from bluegrad.noise.stream import NoiseStream as NoiseStream
    from bluegrad.optimize import approximated as approximated
    from bluegrad.participation import BallsInBins as BallsInBins
    from bluegrad.participation import CyclicPoisson as CyclicPoisson
    from bluegrad.participation import FixedEpochs as FixedEpochs
    from bluegrad.participation import MinSeparation as MinSeparation
    from bluegrad.participation import Poisson as Poisson
    from bluegrad.participation import SinglePass as SinglePass
    from bluegrad.score import Sensitivity as Sensitivity
    from bluegrad.score import certify as certify
    from bluegrad.score import errors as errors
    from bluegrad.score import max_error as max_error
    from bluegrad.score import rmse as rmse
    from bluegrad.score import sensitivity as sensitivity
    from bluegrad.strategy import Strategy as Strategy
    from bluegrad.strategy import banded as banded
    from bluegrad.strategy import banded_inverse_square_root as banded_inverse_square_root
    from bluegrad.strategy import banded_inverse_toeplitz as banded_inverse_toeplitz
    from bluegrad.strategy import banded_square_root as banded_square_root
    from bluegrad.strategy import buffered_toeplitz as buffered_toeplitz
    from bluegrad.strategy import column_normalized as column_normalized
    from bluegrad.strategy import dense as dense
    from bluegrad.strategy import fourier as fourier
    from bluegrad.strategy import full_batch as full_batch
    from bluegrad.strategy import identity as identity
    from bluegrad.strategy import lambda_cgd as lambda_cgd
    from bluegrad.strategy import load_strategy as load_strategy
    from bluegrad.strategy import nu_dp_ftrl as nu_dp_ftrl
    from bluegrad.strategy import save_strategy as save_strategy
    from bluegrad.strategy import square_root as square_root
    from bluegrad.strategy import stamped as stamped
    from bluegrad.strategy import toeplitz as toeplitz
    from bluegrad.strategy import tree_aggregation as tree_aggregation
    from bluegrad.training import PrivacyEngine as PrivacyEngine
    from bluegrad.workload import DenseWorkload as DenseWorkload
    from bluegrad.workload import PrefixSum as PrefixSum
    from bluegrad.workload import Sgd as Sgd

# packages whose functions are called by the package's name
_PACKAGES = ("audit", "optimize", "theory")
# public name -> module that owns it
_HOME = {
    "PrefixSum": "workload",
    "Sgd": "workload",
    "DenseWorkload": "workload",
    "SinglePass": "participation",
    "FixedEpochs": "participation",
    "MinSeparation": "participation",
    "BallsInBins": "participation",
    "CyclicPoisson": "participation",
    "Poisson": "participation",
    "Strategy": "strategy",
    "identity": "strategy",
    "lambda_cgd": "strategy",
    "nu_dp_ftrl": "strategy",
    "square_root": "strategy",
    "banded_square_root": "strategy",
    "banded_inverse_square_root": "strategy",
    "toeplitz": "strategy",
    "banded_inverse_toeplitz": "strategy",
    "buffered_toeplitz": "strategy",
    "banded": "strategy",
    "dense": "strategy",
    "full_batch": "strategy",
    "tree_aggregation": "strategy",
    "fourier": "strategy",
    "stamped": "strategy",
    "column_normalized": "strategy",
    "save_strategy": "strategy",
    "load_strategy": "strategy",
    "approximated": "optimize",
    "Sensitivity": "score",
    "certify": "score",
    "sensitivity": "score",
    "errors": "score",
    "rmse": "score",
    "max_error": "score",
    "Mechanism": "mechanism",
    "Bound": "accounting",
    "calibrate": "accounting",
    "epsilon": "accounting",
    "delta": "accounting",
    "renyi": "accounting",
    "zcdp": "accounting",
    "Unsupported": "_checks",
    "NoiseKey": "noise.key",
    "NoiseStream": "noise.stream",
    "PrivacyEngine": "training",
}

__all__ = [*_PACKAGES, *list(_HOME)]  # noqa: PLE0604 - _HOME holds strings


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"bluegrad.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'bluegrad' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bluegrad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
