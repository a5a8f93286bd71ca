"""Batches: every participation's law, drawn exactly, as a pure function of (key, step)."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from scipy import stats

import bluegrad as bg
from bluegrad import sampling
from bluegrad.noise import kernel
from bluegrad.participation import Participation
from bluegrad.sampling import (
    BatchStream,
    CyclicPoissonBatches,
    Partition,
    PoissonBatches,
    RandomBins,
    batch_stream,
)

KEY = bg.NoiseKey(bytes.fromhex("c0ffee00112233445566778899aabbcc"))
OTHER = bg.NoiseKey(bytes.fromhex("c0ffee00112233445566778899aabbcd"))
ALARM = 1e-6  # false-alarm probability of each statistical test


def all_batches(stream):
    return [stream.batch(step) for step in range(stream.steps)]


def epochs(stream):
    """Iterate as a loader does, one epoch after the other; the position follows what was handed out."""
    taken = 0
    stream.position = lambda: taken
    while taken < stream.steps:
        batches = list(stream)
        taken += len(batches)
        yield batches


def random_cases(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(1, 30))
        yield n, int(rng.integers(1, n + 3)), int(rng.integers(1, n + 3)), int(rng.integers(0, 2**31))


class TestPartition:
    @pytest.mark.parametrize("size, steps, times", [(24, 12, 3), (25, 12, 3), (7, 7, 1), (1, 5, 5), (1000, 70, 10)])
    def test_every_example_once_an_epoch_and_the_same_batches_again(self, size, steps, times):
        stream = batch_stream(bg.FixedEpochs(steps, times), size, KEY)
        passes = list(epochs(stream))
        assert len(passes) == times and all(len(batches) == steps // times for batches in passes)
        for batches in passes:
            assert sorted(i for batch in batches for i in batch) == list(range(size))
            assert batches == passes[0]
            lengths = [len(batch) for batch in batches]
            assert max(lengths) - min(lengths) <= 1

    def test_a_single_pass(self):
        stream = batch_stream(bg.SinglePass(6), 20, KEY)
        (batches,) = epochs(stream)
        assert sorted(i for batch in batches for i in batch) == list(range(20))

    def test_expected_batch_size(self):
        for size, law in [(25, bg.FixedEpochs(12, 3)), (20, bg.SinglePass(6)), (9, bg.MinSeparation(10, 3, 2))]:
            stream = batch_stream(law, size, KEY)
            lengths = [len(stream.batch(step)) for step in range(stream.epoch_steps)]
            assert stream.expected_batch_size == pytest.approx(np.mean(lengths), rel=1e-15)
            assert stream.expected_batch_size == size / stream.epoch_steps

    def test_min_separation_is_never_violated(self):
        # every unit: at most `times` participations, two of them at least `separation` apart
        seen = 0
        for n, b, k, seed in random_cases(300, 1):
            law = bg.MinSeparation(n, b, k)
            assert obeys(all_batches(batch_stream(law, 40, key_of(seed))), b, k)
            seen += 1
        assert seen == 300

    def test_and_is_used_to_the_full(self):
        # nobody is left out, and units come back as often and as soon as the law allows
        for n, b, k, _ in random_cases(100, 2):
            stream = batch_stream(bg.MinSeparation(n, b, k), 40, KEY)
            joined = np.bincount(np.concatenate(all_batches(stream)), minlength=40)
            groups = max(b, -(-n // k))
            assert joined.max() == -(-n // groups) and joined.min() == n // groups

    def test_the_check_of_separation_can_fail(self):
        batches = all_batches(batch_stream(bg.MinSeparation(12, 4, 3), 40, KEY))
        assert obeys(batches, 4, 3)
        assert not obeys(batches, 5, 3)
        assert not obeys(batches, 4, 2)
        assert not obeys([batches[1], *batches[1:]], 4, 3)  # one batch in the place of another

    def test_more_batches_than_examples_are_refused(self):
        for law, size in [(bg.FixedEpochs(12, 2), 5), (bg.SinglePass(6), 5), (bg.MinSeparation(12, 2, 2), 5)]:
            with pytest.raises(ValueError, match=r"size=5: is smaller than the 6 batches of an epoch; use fewer"):
                batch_stream(law, size, KEY)
            batch_stream(law, 6, KEY)

    # Uniformity: the order of 5 examples for 12,000 keys, 100 expected of each of the 120. The sum of (observed -
    # expected)^2 / expected is chi-square with 119 degrees of freedom; false alarm 1e-6. A shuffle that swaps every
    # place with any other (Fisher-Yates written wrongly) gives the orders with probabilities p_i, and then the
    # statistic is noncentral with 12,000 * sum (p_i - 1/120)^2 * 120.
    DRAWS = 12_000

    def test_orders_are_uniform(self):
        counts = dict.fromkeys(permutations(range(5)), 0)
        for i in range(self.DRAWS):
            stream = batch_stream(bg.SinglePass(5), 5, key_of(i))
            counts[tuple(int(stream.batch(step)[0]) for step in range(5))] += 1
        assert uniform(np.array(list(counts.values())))

    def test_a_biased_shuffle_is_not(self):
        chance = dict.fromkeys(permutations(range(5)), 0.0)
        for swaps in product(range(5), repeat=5):
            order = list(range(5))
            for i, j in enumerate(swaps):
                order[i], order[j] = order[j], order[i]
            chance[tuple(order)] += 5.0**-5
        p = np.array(list(chance.values()))
        distance = self.DRAWS * 120 * ((p - 1 / 120) ** 2).sum()
        assert stats.ncx2.sf(stats.chi2.isf(ALARM, 119), 119, distance) > 0.999
        assert not uniform(np.random.default_rng(3).multinomial(self.DRAWS, p))

    def test_tags_have_64_bits(self):
        # ties would be broken by index; among 2^20 tags of 32 bits there would be 128
        tags = sampling._words64(KEY, step=0, leaf=1, count=1 << 20)
        assert len(np.unique(tags)) == len(tags)
        assert len(np.unique(tags >> np.uint64(32))) < len(tags)


def key_of(number):
    return bg.NoiseKey(int(number).to_bytes(16, "big"))


def obeys(batches, separation, times):
    steps = {}
    for step, batch in enumerate(batches):
        for unit in batch:
            steps.setdefault(int(unit), []).append(step)
    return all(len(at) <= times and all(b - a >= separation for a, b in pairwise(at)) for at in steps.values())


def uniform(counts):
    expected = counts.sum() / len(counts)
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1) > ALARM


LAWS = [bg.FixedEpochs(12, 3), bg.SinglePass(8), bg.MinSeparation(11, 3, 2), bg.Poisson(12, 0.2),
        bg.BallsInBins(12, 3), bg.CyclicPoisson(12, 3, 0.4)]  # fmt: skip


@pytest.fixture(params=LAWS, ids=repr)
def law(request):
    return request.param


class TestPureFunction:
    def test_same_key_same_batches_in_any_order(self, law):
        one, other = batch_stream(law, 40, KEY), batch_stream(law, 40, KEY)
        forward = [one.batch(step).tolist() for step in range(law.steps)]
        backward = [other.batch(step).tolist() for step in reversed(range(law.steps))][::-1]
        assert forward == backward == [one.batch(step).tolist() for step in range(law.steps)]

    def test_other_key_other_batches(self, law):
        # keys that differ by one bit; 40 examples in the same batches have probability far below 1e-6
        one, other = (all_batches(batch_stream(law, 40, key)) for key in (KEY, OTHER))
        assert [b.tolist() for b in one] != [b.tolist() for b in other]

    def test_global_seeds_play_no_part(self, law):
        draws = []
        for seed in (1, 2):
            np.random.seed(seed)  # noqa: NPY002 - the global state is the point
            draws.append([b.tolist() for b in all_batches(batch_stream(law, 40, KEY))])
            assert np.random.rand() == np.random.RandomState(seed).rand()  # noqa: NPY002
        assert draws[0] == draws[1]

    def test_batches_are_plain_indices(self, law):
        for batch in all_batches(batch_stream(law, 40, KEY)):
            assert batch.dtype == np.int64 and batch.ndim == 1
            assert len(set(batch.tolist())) == len(batch) and set(batch.tolist()) <= set(range(40))

    def test_words_are_not_the_noise(self):
        # the same 128 bits as both keys, by mistake: the batches still tell nothing about the noise
        drawn = kernel.words(KEY.secret, domain=kernel.SAMPLING, step=0, leaf=0, start=0, count=4096)
        used = sampling._words64(KEY, step=0, leaf=0, count=2048)
        assert (used == (drawn[0::2].astype(np.uint64) << np.uint64(32) | drawn[1::2])).all()
        noise = kernel.words(KEY.secret, domain=kernel.NOISE, step=0, leaf=0, start=0, count=4096)
        assert unrelated(drawn, noise)
        assert not unrelated(drawn, drawn)
        assert not unrelated(drawn, np.where(np.arange(4096) % 20, noise, drawn))  # one word in twenty shared


def unrelated(one, other):
    """Equal bits are Binomial(32 count, 1/2)."""
    differ = sum(int(x).bit_count() for x in one ^ other)
    law = stats.binom(32 * len(one), 0.5)
    return law.ppf(ALARM / 2) <= differ <= law.isf(ALARM / 2)


# Poisson: x[t, i] = whether example i joins step t, independent Bernoulli(q). With N = 200 examples, T = 4,000 steps
# and q = 0.1, four statistics, each with false alarm 1e-6:
# sizes     chi-square of batch sizes against Binomial(N, q), tails pooled to 5 expected or more;
# total     Binomial(N T, q), two-sided: a rate 3 % off moves it by 0.003 * 800,000 = 2,400 = 8.9 deviations;
# examples  sum of (count_i - T q)^2 / (T q (1 - q)), chi-square with N degrees of freedom;
# lags      sum of u[t, i] u[t + 1, i] over sqrt of their number, u standardised: Normal(0, 1); and the same for
#           neighbouring examples within a step. A batch that is drawn twice gives u^2, a mean of 1 where 0 is right.
EXAMPLES, STEPS, RATE = 200, 4000, 0.1


def poisson_p_values(x, rate):
    steps, size = x.shape
    sizes = x.sum(axis=1)
    pool = np.arange(*stats.binom.ppf([5.1 / steps, 1 - 5.1 / steps], size, rate).astype(int))
    edges = [-1, *pool, size]
    expected = steps * np.diff(stats.binom.cdf(edges, size, rate))
    observed = np.histogram(sizes, bins=np.array(edges) + 0.5)[0]
    u = (x - rate) / (rate * (1 - rate)) ** 0.5
    total = stats.binom(size * steps, rate)
    lag = (u[1:] * u[:-1]).sum() / u[1:].size ** 0.5
    neighbour = (u[:, 1:] * u[:, :-1]).sum() / u[:, 1:].size ** 0.5
    return {
        "sizes": stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1),
        "total": 2 * min(total.cdf(x.sum()), total.sf(x.sum() - 1)),
        "examples": stats.chi2.sf((u.sum(axis=0) ** 2 / steps).sum(), size),
        "lags": 2 * stats.norm.sf(max(abs(lag), abs(neighbour))),
    }


def membership(batches, size):
    x = np.zeros((len(batches), size))
    for row, batch in zip(x, batches):
        row[batch] = 1.0
    return x


def rejected(x, rate):
    return {name for name, p in poisson_p_values(x, rate).items() if p < ALARM}


@pytest.fixture(scope="module")
def drawn():
    return membership(all_batches(batch_stream(bg.Poisson(STEPS, RATE), EXAMPLES, KEY)), EXAMPLES)


class TestPoisson:
    def test_the_law_is_binomial(self, drawn):
        assert drawn.shape == (STEPS, EXAMPLES)
        assert rejected(drawn, RATE) == set()

    @pytest.mark.parametrize("rate", [0.97 * RATE, 1.03 * RATE])
    def test_a_rate_3_percent_off_fails(self, drawn, rate):
        assert "total" in rejected(drawn, rate)

    def test_other_samplers_fail(self, drawn):
        rng = np.random.default_rng(7)
        fixed = membership([rng.choice(EXAMPLES, int(EXAMPLES * RATE), replace=False) for _ in range(STEPS)], EXAMPLES)
        assert "sizes" in rejected(fixed, RATE)
        near = membership(
            [rng.choice(EXAMPLES, int(rng.binomial(40, 0.5)), replace=False) for _ in range(STEPS)], EXAMPLES
        )  # a size that is drawn, of the right mean, but of variance 10 where 18 is right
        assert "sizes" in rejected(near, RATE)
        order = rng.permutation(EXAMPLES)
        shuffled = membership([order[(t % 10) * 20 : (t % 10 + 1) * 20] for t in range(STEPS)], EXAMPLES)
        assert {"sizes", "lags"} <= rejected(shuffled, RATE)
        assert "lags" in rejected(np.repeat(drawn[::2], 2, axis=0), RATE)  # every batch twice
        favoured = (rng.random((STEPS, EXAMPLES)) < RATE * np.linspace(0.8, 1.2, EXAMPLES)).astype(float)
        assert rejected(favoured, RATE) == {"examples"}
        correlated = np.repeat(drawn[:, ::2], 2, axis=1)  # examples that join in pairs
        assert {"sizes", "lags"} <= rejected(correlated, RATE)

    def test_the_right_law_from_another_generator_passes(self):
        rng = np.random.default_rng(8)
        assert rejected((rng.random((STEPS, EXAMPLES)) < RATE).astype(float), RATE) == set()

    def test_empty_batches_occur_and_count(self):
        stream = batch_stream(bg.Poisson(300, 0.02), 50, KEY)
        batches = [batch for passes in epochs(stream) for batch in passes]
        empty = sum(not batch for batch in batches)
        # each is empty with probability 0.98^50 = 0.364
        law = stats.binom(300, 0.98**50)
        assert len(batches) == 300 and law.ppf(ALARM / 2) <= empty <= law.isf(ALARM / 2)
        assert stream.can_be_empty and not batch_stream(bg.SinglePass(3), 5, KEY).can_be_empty

    def test_rate_one_takes_everybody(self):
        stream = batch_stream(bg.Poisson(3, 1.0), 7, KEY)
        assert [batch.tolist() for batch in all_batches(stream)] == [list(range(7))] * 3
        assert stream.epoch_steps == 1 and stream.expected_batch_size == 7.0

    @pytest.mark.parametrize("rate", [1e-12, 1e-3, 1 - 1e-9, np.nextafter(1.0, 0.0)])
    def test_extreme_rates(self, rate):
        size = sum(len(b) for b in all_batches(batch_stream(bg.Poisson(5, rate), 1000, KEY)))
        assert size in {0, 5000} if rate != 1e-3 else 0 < size < 30

    def test_a_subset_at_a_lower_rate(self):
        # one word an example: who joins at a rate also joins at every higher one, so thresholds are in order
        low, high = (all_batches(batch_stream(bg.Poisson(50, rate), 200, KEY)) for rate in (0.1, 0.3))
        assert all(set(a) <= set(b) for a, b in zip(low, high))

    def test_expected_batch_size_is_the_rate_times_the_examples(self):
        stream = batch_stream(bg.Poisson(10, 0.03), 50, KEY)
        assert stream.expected_batch_size == 1.5
        assert stream.epoch_steps == 33 and len(stream) == 10


# Balls in bins: bin[i] of N = 400 examples under 500 keys, independent and uniform over b = 8. Statistics, each with
# false alarm 1e-6:
# sizes      sizes of bin 0 over the keys, Binomial(N, 1 / b): chi-square with pooled tails
# uniform    counts of all 500 * 400 bins, chi-square with 7 degrees of freedom
# examples   for each example the counts of its bins over the keys, chi-square with 7 N degrees of freedom
# pairs      pairs of neighbouring examples in one bin, Binomial(500 * 200, 1 / b)
def bins_drawn(keys, size, bins, draw):
    return np.array([draw(i, size, bins) for i in range(keys)])


def rejected_bins(x, bins):
    keys, size = x.shape
    sizes = (x == 0).sum(axis=1)
    pool = np.arange(*stats.binom.ppf([5.1 / keys, 1 - 5.1 / keys], size, 1 / bins).astype(int))
    edges = [-1, *pool, size]
    expected = keys * np.diff(stats.binom.cdf(edges, size, 1 / bins))
    observed = np.histogram(sizes, bins=np.array(edges) + 0.5)[0]
    counts = np.array([np.bincount(column, minlength=bins) for column in x.T])
    pair = stats.binom(keys * (size // 2), 1 / bins)
    same = (x[:, 0::2] == x[:, 1::2]).sum()
    total = counts.sum(axis=0)
    p_values = {
        "sizes": stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1),
        "uniform": stats.chi2.sf(((total - total.mean()) ** 2 / total.mean()).sum(), bins - 1),
        "examples": stats.chi2.sf(((counts - keys / bins) ** 2 * bins / keys).sum(), (bins - 1) * size),
        "pairs": 2 * min(pair.cdf(same), pair.sf(same - 1)),
    }
    return {name for name, p in p_values.items() if p < ALARM}


class TestBallsInBins:
    KEYS, SIZE, BINS = 500, 400, 8

    def drawn(self, number, size, bins):
        stream = batch_stream(bg.BallsInBins(2 * bins, 2), size, key_of(number))
        x = np.full(size, -1)
        for step in range(bins):
            x[stream.batch(step)] = step
        return x

    def test_every_example_in_one_bin_the_same_every_epoch(self):
        stream = batch_stream(bg.BallsInBins(15, 3), 50, KEY)
        passes = list(epochs(stream))
        assert len(passes) == 3 and all(len(batches) == 5 for batches in passes)
        assert sorted(i for batch in passes[0] for i in batch) == list(range(50))
        assert passes[0] == passes[1] == passes[2]
        assert stream.expected_batch_size == 10.0 and stream.can_be_empty

    def test_the_law(self):
        x = bins_drawn(self.KEYS, self.SIZE, self.BINS, self.drawn)
        assert x.min() == 0 and x.max() == self.BINS - 1
        assert rejected_bins(x, self.BINS) == set()

    def test_other_samplers_fail(self):
        rng = np.random.default_rng(11)
        even = np.arange(self.SIZE) % self.BINS  # a shuffle into equal bins, as FixedEpochs draws
        x = np.array([rng.permutation(even) for _ in range(self.KEYS)])
        assert "sizes" in rejected_bins(x, self.BINS)
        x = rng.integers(self.BINS, size=(self.KEYS, self.SIZE))
        assert rejected_bins(x, self.BINS) == set()
        assert "pairs" in rejected_bins(np.where(np.arange(self.SIZE) % 2, np.roll(x, 1, axis=1), x), self.BINS)
        assert "uniform" in rejected_bins(np.where(rng.random(x.shape) < 0.03, 0, x), self.BINS)
        assert "examples" in rejected_bins(np.where(rng.random(x.shape) < 0.15, even, x), self.BINS)

        def size_then_draw(number, size, bins):  # a size of the right law, but that many without replacement, anew
            y = np.zeros(size, int)
            for i in range(1, bins):
                y[rng.choice(size, rng.binomial(size, 1 / bins), replace=False)] = i
            return y

        assert rejected_bins(bins_drawn(self.KEYS, self.SIZE, self.BINS, size_then_draw), self.BINS)

    def test_empty_bins_are_steps(self):
        stream = batch_stream(bg.BallsInBins(40, 2), 10, KEY)
        batches = [batch for passes in epochs(stream) for batch in passes]
        assert len(batches) == 40 and sum(map(len, batches)) == 20 and any(not batch for batch in batches)

    @pytest.mark.parametrize("count", [1, 3, 1000, 2**31 + 11])
    def test_bins_of_words_at_the_edges(self, count):
        words = [0, 1, 2**32, 2**63, 2**64 - 1, *(int(2**64 * i / 7) for i in range(7))]
        found = sampling._scaled(np.array(words, np.uint64), count)
        assert found.tolist() == [word * count >> 64 for word in words]


class TestCyclicPoisson:
    def test_only_the_due_group_joins_at_its_rate(self):
        law = bg.CyclicPoisson(STEPS, 4, 0.3)
        x = membership(all_batches(batch_stream(law, EXAMPLES, KEY)), EXAMPLES)
        group = np.array([x[g::4].sum(axis=0) > 0 for g in range(4)])
        assert (group.sum(axis=0) == 1).all() and (group.sum(axis=1) == EXAMPLES // 4).all()
        for g in range(4):
            due = x[g::4][:, group[g]]
            assert rejected(due, 0.3) == set()
            assert "total" in rejected(due, 0.27)
            # a batch of a fixed size from the group fails
            rng = np.random.default_rng(g)
            fixed = membership([rng.choice(50, 15, replace=False) for _ in range(len(due))], 50)
            assert "sizes" in rejected(fixed, 0.3)

    def test_groups_differ_by_one_at_most_and_by_the_key(self):
        law = bg.CyclicPoisson(7, 7, 1.0)
        batches = all_batches(batch_stream(law, 40, KEY))
        assert sorted(np.concatenate(batches).tolist()) == list(range(40))
        assert {len(batch) for batch in batches} == {5, 6}
        other = all_batches(batch_stream(law, 40, OTHER))
        assert [b.tolist() for b in batches] != [b.tolist() for b in other]

    def test_sizes(self):
        stream = batch_stream(bg.CyclicPoisson(20, 4, 0.5), 40, KEY)
        assert stream.expected_batch_size == 5.0 and stream.epoch_steps == 8 and stream.can_be_empty
        with pytest.raises(ValueError, match=r"size=3: is smaller than the 4 groups"):
            batch_stream(bg.CyclicPoisson(20, 4, 0.5), 3, KEY)


class TestPosition:
    def test_iteration_begins_where_the_releases_stand(self, law):
        stream = batch_stream(law, 40, KEY)
        every = [batch.tolist() for batch in all_batches(stream)]
        for start in range(law.steps):
            stream.position = lambda start=start: start
            rest = list(stream)
            end = min((start // stream.epoch_steps + 1) * stream.epoch_steps, law.steps)
            assert rest == every[start:end]
            assert stream.issued == end - 1

    def test_a_loop_left_early_goes_on_with_the_same_batch(self, law):
        stream = batch_stream(law, 40, KEY)
        stream.position = lambda: 2
        first, again = next(iter(stream)), next(iter(stream))
        assert first == again == stream.batch(2).tolist() and stream.issued == 2

    def test_past_the_end_raises(self, law):
        stream = batch_stream(law, 40, KEY)
        stream.position = lambda: law.steps
        with pytest.raises(ValueError, match=rf"step={law.steps + 1}: all steps={law.steps} of the mechanism"):
            next(iter(stream))

    def test_resume_in_mid_epoch(self, law):
        stream = batch_stream(law, 40, KEY)
        resumed = batch_stream(law, 40, OTHER)
        resumed.load_state_dict(stream.state_dict())
        for one in (stream, resumed):
            one.position = lambda: 2
        assert list(stream) == list(resumed)
        assert [b.tolist() for b in all_batches(stream)] == [b.tolist() for b in all_batches(resumed)]

    def test_loading_forgets_what_was_issued(self):
        stream = batch_stream(bg.SinglePass(3), 5, KEY)
        list(stream)
        assert stream.issued == 2
        stream.load_state_dict(stream.state_dict())
        assert stream.issued == -1

    def test_the_state_is_plain_data(self, law):
        import json

        state = batch_stream(law, 40, KEY).state_dict()
        assert json.loads(json.dumps(state)) == state

    @pytest.mark.parametrize(
        "other, size",
        [
            (bg.FixedEpochs(12, 3), 41),
            (bg.FixedEpochs(12, 4), 40),
            (bg.FixedEpochs(15, 3), 40),
            (bg.MinSeparation(12, 4, 3), 40),
            (bg.Poisson(12, 0.25), 40),
            (bg.BallsInBins(12, 3), 40),
            (bg.CyclicPoisson(12, 3, 0.4), 40),
        ],
    )
    def test_another_runs_state_is_refused(self, other, size):
        stream = batch_stream(other, size, OTHER)
        with pytest.raises(ValueError, match=r"state\['(size|participation)'\]=.*must equal.*same data and law"):
            stream.load_state_dict(batch_stream(bg.FixedEpochs(12, 3), 40, KEY).state_dict())
        assert stream.key == OTHER


class TestArguments:
    @pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
    def test_size(self, law, size):
        with pytest.raises(ValueError, match="size="):
            batch_stream(law, size, KEY)

    @pytest.mark.parametrize("key", [0, 42, None, bytes(16), "c0ffee"])
    def test_key(self, law, key):
        with pytest.raises(ValueError, match=r"key=.*NoiseKey"):
            batch_stream(law, 40, key)

    def test_a_law_without_a_sampler_is_refused_by_name(self):
        class Weekly(Participation):
            steps = 3
            prefix = describe = None

        Weekly.__abstractmethods__ = frozenset()
        with pytest.raises(bg.Unsupported, match=r"no sampler draws .*Weekly"):
            batch_stream(Weekly(), 40, KEY)

    def test_the_key_is_never_shown(self, law):
        stream = batch_stream(law, 40, KEY)
        assert "c0ffee" not in repr(stream) + str(stream)
        assert isinstance(stream, BatchStream) and isinstance(
            stream, (Partition, PoissonBatches, RandomBins, CyclicPoissonBatches)
        )
