"""A strategy that says nothing about its structure: every rule has to work from its matrix."""

from __future__ import annotations

import numpy as np

import bluegrad as bg


class General(bg.Strategy):
    """A strategy that says nothing about its structure."""

    def __init__(self, matrix):
        self.matrix, self.steps = np.asarray(matrix, float), np.shape(matrix)[1]

    def dense(self):
        return self.matrix

    def prefix(self, steps):
        return General(self.matrix[:steps, :steps])

    def describe(self):
        return {"name": "general"}

    def __repr__(self):
        return "general"
