"""Best member of a strategy family for a workload and a participation."""

from bluegrad.optimize.scalar import lambda_cgd, nu_dp_ftrl

__all__ = ["lambda_cgd", "nu_dp_ftrl"]
