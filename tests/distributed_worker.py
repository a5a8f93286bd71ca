"""Tiny private runs in one process or several: what the tests of distribution compare. Started by torchrun too."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import bluegrad as bg
from bluegrad.training import ranks

STEPS, EPOCHS, SIZE = 12, 3, 41
KEY, DRAW = bg.NoiseKey.from_hex("0123456789abcdef" * 2), bg.NoiseKey.from_hex("fedcba9876543210" * 2)
# name: strategy, law, mode, physical batch size
CASES: dict[str, tuple[Any, Any, str, int | None]] = {
    "replayed, fixed": (bg.lambda_cgd(STEPS, 0.7), bg.FixedEpochs(STEPS, EPOCHS), "hooks", None),
    "kept, fixed, ghost": (bg.square_root(bg.PrefixSum(STEPS)), bg.FixedEpochs(STEPS, EPOCHS), "ghost", None),
    "recurrent, bins": (bg.buffered_toeplitz(STEPS, [0.9, 0.3], [0.2, 0.1]), bg.BallsInBins(STEPS, EPOCHS), "hooks", 3),
    "independent, poisson": (bg.identity(STEPS), bg.Poisson(STEPS, 0.05), "hooks", None),  # a third of shares is empty
    "independent, poisson, ghost": (bg.identity(STEPS), bg.Poisson(STEPS, 0.05), "ghost", 2),
}


def run(
    case: str, *, scale: float = 1.0, stop: int = STEPS, checkpoint: str = "", resume: bool = False
) -> torch.Tensor:
    """Train and return the weights, flat; stopped at a step, a checkpoint is written.

    Args:
        case: one of CASES.
        scale: of the loss; with 0 the weights are the noise alone.
        stop: steps to take.
        checkpoint: its file.
        resume: begin with it.
    """
    strategy, law, mode, physical = CASES[case]
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(SIZE, 6, generator=generator), torch.randint(3, (SIZE,), generator=generator)
    torch.manual_seed(100 + ranks.current().rank)  # the engine must make the models equal
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    if ranks.current().count == 1 or ranks.current().first:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    engine, criterion = bg.PrivacyEngine(), Scaled(scale)
    made = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=2 if "poisson" in case else 11), max_grad_norm=1.0,
        mechanism=bg.Mechanism(strategy, law, noise_multiplier=0.5), criterion=criterion if mode == "ghost" else None,
        grad_sample_mode=mode, max_physical_batch_size=physical, key=KEY, sampling_key=DRAW,
    )  # fmt: skip
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    model, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else criterion
    if resume:
        engine.load_checkpoint(path=checkpoint, module=model, optimizer=optimizer)
    while optimizer.steps_taken < stop:
        for inputs, labels in loader:
            criterion(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if optimizer.steps_taken == stop and not optimizer.accumulating:
                break
    if checkpoint and not resume:
        engine.save_checkpoint(path=checkpoint, module=model, optimizer=optimizer)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Scaled(torch.nn.CrossEntropyLoss):
    """A multiple of the cross entropy."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """As torch's, scaled."""
        return self.scale * super().forward(output, target)


def main() -> None:
    """Do the jobs of a file together and write the first process's weights of each."""
    group = ranks.start()
    jobs = json.loads(Path(sys.argv[1]).read_text())
    for number, job in enumerate(jobs):
        weights = run(**job)
        everywhere = group.gathered(weights)
        assert all(torch.equal(weights, other) for other in everywhere), f"{job}: processes differ"
        if group.first:
            torch.save(weights, Path(sys.argv[2]) / f"{number}.pt")
    if group.first:
        print(f"{len(jobs)} jobs on {group.count} processes")
    ranks.finish()


if __name__ == "__main__":
    main()
