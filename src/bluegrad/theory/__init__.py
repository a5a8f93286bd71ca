"""The theory of correlated noise as a tool: which noise is best for a problem, and how good it can get."""

from bluegrad.theory.closed import (
    Bounds,
    difference_private,
    lower_bounds,
    root_private,
    root_upper_bounds,
    white_private,
)
from bluegrad.theory.convex import ConvexBound, ConvexClass, convex_bound, convex_optimal
from bluegrad.theory.finite import (
    Utility,
    gradient_norm_bound,
    half_exponential_constant,
    safe_clip_norm,
    utility_bound,
)
from bluegrad.theory.named import damped_difference, damped_root, factored, moving, transfer, white
from bluegrad.theory.optimal import minimum_phase, optimal_noise, optimal_private, optimal_strategy
from bluegrad.theory.problem import Problem, Suboptimality, suboptimality
from bluegrad.theory.simulation import Estimate, Simulation, simulate
from bluegrad.theory.transfer import Transfer

__all__ = [
    "Bounds",
    "ConvexBound",
    "ConvexClass",
    "Estimate",
    "Problem",
    "Simulation",
    "Suboptimality",
    "Transfer",
    "Utility",
    "convex_bound",
    "convex_optimal",
    "damped_difference",
    "damped_root",
    "difference_private",
    "factored",
    "gradient_norm_bound",
    "half_exponential_constant",
    "lower_bounds",
    "minimum_phase",
    "moving",
    "optimal_noise",
    "optimal_private",
    "optimal_strategy",
    "root_private",
    "root_upper_bounds",
    "safe_clip_norm",
    "simulate",
    "suboptimality",
    "transfer",
    "utility_bound",
    "white",
    "white_private",
]
