"""Sensitivity and error of a strategy: the one home of both."""

from bluegrad.score.contribution import Sensitivity, certify, sensitivity
from bluegrad.score.error import errors, max_error, rmse

__all__ = ["Sensitivity", "certify", "errors", "max_error", "rmse", "sensitivity"]
