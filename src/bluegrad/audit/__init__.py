"""Empirical audits: does the noise that is released keep the epsilon that is claimed?

`examine` attacks a mechanism, replayed (`Replay`) or trained from end to end (`Training`), and returns an `Audit`.
In the one-way flow of data this package lies between training and tasks.
"""

from __future__ import annotations

from bluegrad.audit._examine import Audit, examine
from bluegrad.audit._subjects import Replay, Subject, Training

__all__ = ["Audit", "Replay", "Subject", "Training", "examine"]
