"""Best member of a strategy family for a workload and a participation."""

from bluegrad.optimize.approximate import approximated
from bluegrad.optimize.restarts import stamps
from bluegrad.optimize.scalar import lambda_cgd, nu_dp_ftrl

__all__ = ["approximated", "lambda_cgd", "nu_dp_ftrl", "stamps"]
