"""Private training on Opacus' per-sample gradients."""

from bluegrad.training.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
