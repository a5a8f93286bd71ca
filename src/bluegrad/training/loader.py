"""The data loader of a private run: the user's, with the batches of a participation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from opacus.data_loader import wrap_collate_with_empty
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler, get_worker_info

from bluegrad import _checks
from bluegrad.sampling import BatchStream
from bluegrad.training.optimizer import CorrelatedNoise


class PrivateDataLoader(DataLoader[Any]):
    """Yields the batch of every step, in order, and refuses to hand out one while another is unreleased.

    A step must be of as many examples as its batch, and of a batch that was drawn. That they are this batch's isn't
    checked: moved to a device or augmented, its tensors are other ones. A loop that draws a batch and trains on
    something else of that size isn't refused, and the guarantee doesn't hold for it.

    Random augmentation is repeated bit for bit by a resumed run if it draws from the global generators of torch,
    Python or NumPy: in this process their states are saved; in a worker they are seeded for every batch, from the key
    of the batches, whatever `worker_init_fn` makes of them. A data set whose `__getitems__` doesn't iterate over the
    indices isn't reached; it resumes bit for bit between epochs only.

    Args:
        source: the user's loader; its data set, workers and collation are kept.
        batches: the index stream of the participation.
        optimizer: the private optimizer, which takes one step a batch.
        collate_fn: of `choose_collation`.
        max_physical_batch_size: split larger batches; the optimizer then releases at the end of each.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        batches: BatchStream,
        optimizer: CorrelatedNoise,
        collate_fn: Any,
        max_physical_batch_size: int | None = None,
    ) -> None:
        sampler: Any = batches
        if max_physical_batch_size is not None:
            sampler = BatchSplittingSampler(
                sampler=batches, max_batch_size=max_physical_batch_size, optimizer=optimizer
            )
        if source.num_workers:
            sampler = _SeededBatches(sampler, batches)
        self._optimizer = optimizer
        batches.workers = source.num_workers
        own = source.generator is None
        self._own_generator = torch.Generator() if own else None
        super().__init__(
            source.dataset,
            batch_sampler=sampler,
            num_workers=source.num_workers,
            collate_fn=collate_fn,
            pin_memory=source.pin_memory,
            timeout=source.timeout,
            worker_init_fn=source.worker_init_fn,
            multiprocessing_context=source.multiprocessing_context,
            generator=self._own_generator if own else source.generator,
            prefetch_factor=source.prefetch_factor,
            persistent_workers=source.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        optimizer = self._optimizer
        optimizer.discard_partial()
        if self._own_generator is not None:
            # the workers' first seeds: drawn from the global generator they would depend on how often a run resumed
            self._own_generator.manual_seed(optimizer.steps_taken)
        optimizer.batches.watched = True
        before, handed, batches = optimizer.calls, 0, super().__iter__()
        while True:
            if optimizer.calls != before + handed:
                raise RuntimeError(
                    f"step={optimizer.steps_taken + 1}: {handed} batches handed out but {optimizer.calls - before} "
                    "calls of optimizer.step(); every batch of a private run takes one, empty ones included; to "
                    "look at the data make a DataLoader of your own"
                )
            try:
                batch = next(batches)
            except StopIteration:
                return
            handed += 1
            yield batch


class _SeededBatches(Sampler[list[int]]):
    """Another sampler's index batches, each with the seed of its step and part."""

    def __init__(self, sampler: Sampler[list[int]], batches: BatchStream) -> None:
        self.sampler, self.batches = sampler, batches

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        step, part = -1, 0
        for indices in self.sampler:
            part = part + 1 if self.batches.issued == step else 0
            step = self.batches.issued
            yield _Seeded(indices, self.batches.seed(step, part))


class _Seeded(list[int]):
    """Indices that seed the generators of the worker that begins to read them.

    The worker knows of a batch by its indices alone, and a data set put around the user's would hide theirs from
    their `worker_init_fn`.
    """

    def __init__(self, indices: list[int], seed: int) -> None:
        super().__init__(indices)
        self._seed: int | None = seed

    def __iter__(self) -> Iterator[int]:
        if self._seed is not None and get_worker_info() is not None:
            seed, self._seed = self._seed, None  # once: a second pass must not repeat the first one's numbers
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002 - the global generator is the point
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Seeded, (list(super().__iter__()), self._seed)


def choose_collation(source: DataLoader[Any], batches: BatchStream) -> Any:
    """The source's collation; where batches can be empty, taught to make such a one before it saw any other.

    Raises:
        ValueError: empty batches can't be made of the structure that the loader yields.
    """
    if not batches.may_be_empty:
        return source.collate_fn
    collate = wrap_collate_with_empty(collate_fn=source.collate_fn)
    try:
        collate([source.dataset[0]])  # structure only: an example's shapes are kept, not its values
        collate.first_batch = collate._make_empty_batch(collate.first_batch)
    except TypeError as error:
        raise _checks.fail(
            "data_loader.collate_fn", source.collate_fn, f"can't yield an empty batch ({error})",
            "yield tensors, or lists, tuples or dicts of them: a sampled batch may be empty",
        ) from None  # fmt: skip
    return collate


def check_loader(loader: object) -> DataLoader[Any]:
    """Return the loader if its batches may be replaced by the engine's.

    Raises:
        ValueError: not a map-style loader with plain batches, or one with a sampler of its own, whose law would
            be lost.
    """
    if not isinstance(loader, DataLoader):
        raise _checks.fail(
            "data_loader", type(loader).__name__, "must be a torch DataLoader", "wrap the data set in one"
        )
    if isinstance(loader, PrivateDataLoader):
        raise _checks.fail(
            "data_loader", "PrivateDataLoader", "belongs to another private run", "pass a plain DataLoader"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise _checks.fail(
            "data_loader.dataset", type(loader.dataset).__name__,
            "can't be sampled by index, so no participation can be guaranteed", "use a map-style data set",
        )  # fmt: skip
    if loader.batch_size is None:
        raise _checks.fail(
            "data_loader.batch_size", None, "the engine draws its own batches, a custom batch sampler would be lost",
            "pass DataLoader(dataset, batch_size=...)",
        )  # fmt: skip
    plain = isinstance(loader.sampler, SequentialSampler) or (
        isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement
    )
    if not plain:
        raise _checks.fail(
            "data_loader.sampler", type(loader.sampler).__name__,
            "the engine draws its own batches, so this sampler's law would be lost and the guarantee false",
            "pass a loader without sampler (shuffle=True or False)",
        )  # fmt: skip
    size = len(loader.dataset)  # type: ignore[arg-type]
    if size == 0 or loader.batch_size > size:
        raise _checks.fail(
            "data_loader.batch_size", loader.batch_size, f"is larger than the data set of {size} examples",
            "use a smaller batch",
        )  # fmt: skip
    return loader
