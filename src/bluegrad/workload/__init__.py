"""Workloads A: what the optimizer makes of the per-step gradients, a lower-triangular n x n matrix."""

from bluegrad.workload.base import DenseWorkload, PrefixSum, Workload, power_coefficients
from bluegrad.workload.sgd import Sgd

__all__ = ["DenseWorkload", "PrefixSum", "Sgd", "Workload", "power_coefficients"]
