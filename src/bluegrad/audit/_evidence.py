"""What samples prove: bounds that hold with a stated confidence, whatever the mechanism does."""

from __future__ import annotations

from math import ceil, exp, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, norm, t

from bluegrad.audit._canary import Array

# Thresholds among which half of the samples chooses: shares of all scores that lie below.
_SHARES = np.linspace(0.02, 0.98, 49)
_TAIL = 40


def at_least(successes: NDArray[np.int64], trials: int, failure: float) -> Array:
    """Lower confidence bound on a probability (Clopper and Pearson), from independent trials."""
    counts = np.asarray(successes)
    return np.where(counts > 0, beta.ppf(failure, np.maximum(counts, 1), trials - counts + 1), 0.0)


def at_most(successes: NDArray[np.int64], trials: int, failure: float) -> Array:
    """Upper confidence bound on a probability (Clopper and Pearson), from independent trials."""
    return 1.0 - at_least(trials - np.asarray(successes), trials, failure)


def epsilon_at_least(present: Array, absent: Array, delta: float, failure: float) -> float:
    """Lower confidence bound on epsilon at delta, for any mechanism.

    An event has P <= e^epsilon Q + delta both ways. Half of the samples chooses the event, a score beyond a
    threshold, and the way; the other half, which the choice hasn't seen, bounds both probabilities.

    Args:
        present: scores with the canary, shape (count,), independent.
        absent: scores without, shape (count,).
        delta: failure probability of the guarantee.
        failure: probability that the bound is above the truth.

    Source: Jagielski et al. 2020 (arXiv 2006.07709), with Clopper and Pearson's intervals.
    """
    half = min(len(present), len(absent)) // 2
    ways = ((present, absent), (-absent, -present))
    tail = 1.0 - np.geomspace(0.02, 1.0 / max(half, 50), _TAIL)
    found = []
    for way, (more, less) in enumerate(ways):
        thresholds = np.quantile(np.concatenate((more[:half], less[:half])), np.concatenate((_SHARES, tail)))
        bounds = _bounds(more[:half], less[:half], thresholds, delta, failure)
        best = int(bounds.argmax())
        found.append((float(bounds[best]), way, thresholds[best : best + 1]))
    _, way, threshold = max(found, key=lambda item: item[0])
    more, less = ways[way]
    return max(0.0, float(_bounds(more[half:], less[half:], threshold, delta, failure)[0]))


def _bounds(more: Array, less: Array, thresholds: Array, delta: float, failure: float) -> Array:
    """log((P - delta) / Q) of scores above each threshold, P from below and Q from above."""
    hits = len(more) - np.searchsorted(np.sort(more), thresholds, side="right")
    alarms = len(less) - np.searchsorted(np.sort(less), thresholds, side="right")
    likely = at_least(hits, len(more), 0.5 * failure) - delta
    return np.log(np.maximum(likely, 1e-300)) - np.log(at_most(alarms, len(less), 0.5 * failure))


def delta_at_least(present: Array, absent: Array, epsilon: float, failure: float) -> float:
    """Lower confidence bound on delta at epsilon, for any mechanism.

    The events are log ratios above epsilon, and below -epsilon. delta >= P - c Q with c = e^epsilon is turned into
    one probability, that of a hit among P's samples or none among Q's, c times as many: the sum of independent
    trials, for whose mean Clopper and Pearson's bound holds too (Hoeffding 1956, theorem 5).
    """
    return max(
        _difference(present > epsilon, absent > epsilon, epsilon, 0.5 * failure),
        _difference(absent < -epsilon, present < -epsilon, epsilon, 0.5 * failure),
    )


def _difference(hits: NDArray[np.bool_], alarms: NDArray[np.bool_], epsilon: float, failure: float) -> float:
    trials = min(len(hits), len(alarms))
    few = max(1, int(trials / exp(epsilon)))
    share = trials / few  # at least c, so that P - share Q is no more than P - c Q
    good = int(hits[:few].sum()) + trials - int(alarms[:trials].sum())
    return float((1.0 + share) * at_least(np.asarray(good), few + trials, failure) - share)


def repetitions_needed(epsilon: float, delta: float, failure: float) -> int:
    """Repetitions from which `delta_at_least` can come to half of delta."""
    margin = norm.isf(0.5 * failure) * (1.0 + exp(epsilon)) * sqrt(0.25 / (1.0 + exp(-epsilon)))
    return max(200, ceil((margin / (0.5 * delta)) ** 2), ceil(8.0 * log(2.0 / failure)))


def white_noise_p_value(products: Array, count: int) -> float:
    """How likely products this far from white noise's are, by Bonferroni over all of them.

    Args:
        products: W W^T of W with `count` columns, independent Normal(0, 1) if the claimed law is right.
        count: number of columns.

    Returns:
        A p-value: at most x with probability at most x. Exact chi-squared and t tests a pair.
    """
    squares = np.diag(products)
    spread = 2.0 * np.minimum(chi2.sf(squares, count), chi2.cdf(squares, count))
    rows, columns = np.triu_indices(len(products), 1)
    sizes = np.sqrt(np.maximum(squares, 1e-300))  # no noise at all has no correlations; its variance tells
    r = np.clip(products[rows, columns] / (sizes[rows] * sizes[columns]), -1.0, 1.0)
    cross = 2.0 * t.sf(np.abs(r) * np.sqrt((count - 1) / np.maximum(1.0 - r * r, 1e-300)), count - 1)
    smallest = min(float(spread.min()), float(cross.min()) if len(cross) else 1.0)
    return min(1.0, smallest * (len(spread) + len(cross)))
