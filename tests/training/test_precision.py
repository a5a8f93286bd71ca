"""Half precision: gradients are clipped, summed and noised in float32, or the combination is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bluegrad as bg

HALVES = [torch.bfloat16, torch.float16]
KEY, DRAW = bg.NoiseKey.from_hex("0123456789abcdef" * 2), bg.NoiseKey.from_hex("fedcba9876543210" * 2)
MECHANISM = bg.Mechanism(bg.lambda_cgd(4, 0.5), bg.FixedEpochs(4, 2), noise_multiplier=1.0)


def private(mode: str = "hooks", dtype: torch.dtype = torch.float32, clip: float = 0.7):
    """Model, optimizer, criterion and loader over ten examples with enormous gradients, five a batch."""
    torch.manual_seed(2)
    x, y = 1000.0 * torch.randn(10, 6), torch.randint(3, (10,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)
    criterion = torch.nn.CrossEntropyLoss()
    made = bg.PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x.to(dtype), y), batch_size=5), max_grad_norm=clip, mechanism=MECHANISM,
        grad_sample_mode=mode, criterion=criterion if mode == "ghost" else None, key=KEY, sampling_key=DRAW,
    )  # fmt: skip
    return made[0], made[1], made[2] if mode == "ghost" else criterion, made[-1]


def norm(tensors) -> float:
    return float(torch.cat([t.double().reshape(-1) for t in tensors]).norm())


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("half", HALVES)
def test_under_autocast_no_unit_exceeds_the_clip_norm(mode, half):
    model, optimizer, criterion, loader = private(mode)
    x, y = next(iter(loader))
    for i in range(len(x)):
        with torch.autocast("cpu", dtype=half):
            loss = criterion(model(x[i : i + 1]), y[i : i + 1])
        loss.backward()
        optimizer.sum_clipped()
        sums = [p.summed_grad for p in optimizer.params]
        assert all(s.dtype == torch.float32 for s in sums)
        assert 0.69 < norm(sums) <= 0.7 * (1 + 1e-6)
        optimizer.discard_partial()
        optimizer.zero_grad()


def test_norms_in_half_precision_would_exceed_it():
    """What the test above guards against: the same rows, their norms rounded to 8 bits."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 50, generator=generator)
    factors = 0.7 / rows.to(torch.bfloat16).norm(dim=1).float()
    assert float((rows * factors[:, None]).norm(dim=1).max()) > 0.7 * 1.001


@pytest.mark.parametrize("half", HALVES)
def test_ghost_clipping_in_half_precision_is_refused(half):
    model, optimizer, criterion, loader = private("ghost")
    x, y = next(iter(loader))
    before = [p.clone() for p in model.parameters()]
    with torch.autocast("cpu", dtype=half):
        loss = criterion(model(x), y)
    with pytest.raises(RuntimeError, match=r"parameter .* half precision \(autocast\)"):
        loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before)) and optimizer.steps_taken == 0
    with pytest.raises(bg.Unsupported, match=r"ghost.*half"):
        private("ghost", dtype=half)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("half", HALVES)
def test_half_parameters_get_the_float32_release_rounded_once(mode, half):
    model, optimizer, criterion, loader = private(mode, dtype=half)
    stream = bg.NoiseStream(MECHANISM, [p.float() for p in optimizer.params], clip_norm=0.7, key=KEY)
    for _ in range(2):
        for x, y in loader:
            criterion(model(x), y).backward()
            kept = [p.grad_sample.clone() for p in optimizer.params]
            optimizer.step()
            norms = torch.cat([g.float().flatten(1) for g in kept], dim=1).norm(dim=1)
            factors = (0.7 / (norms + 1e-6)).clamp(max=1.0)
            sums = [torch.einsum("i,i...", factors, g.float()) for g in kept]
            for p, total, noise in zip(optimizer.params, sums, stream.next()):
                assert p.grad.dtype == half
                expected = (total + noise) / 5.0
                assert torch.allclose(p.grad.float(), expected, rtol=2.0**-8, atol=1e-6)
            optimizer.zero_grad()
    assert optimizer.steps_taken == 4 and all(torch.isfinite(p).all() for p in model.parameters())


def test_sums_beyond_half_precision_are_divided_before_they_are_rounded():
    model, optimizer, criterion, loader = private(dtype=torch.float16, clip=5e4)
    noise = bg.NoiseStream(MECHANISM, [p.float() for p in optimizer.params], clip_norm=5e4, key=KEY).next()
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    optimizer.step()
    assert max(float(z.abs().max()) for z in noise) > 65504.0, "the sum doesn't fit"
    assert max(float(p.grad.abs().max()) for p in optimizer.params) < 65504.0


def test_a_grad_scaler_is_refused_before_anything_is_released():
    model, optimizer, criterion, loader = private()
    scaler = torch.amp.GradScaler("cpu")
    before = [p.clone() for p in model.parameters()]
    x, y = next(iter(loader))
    scaler.scale(criterion(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="GradScaler scales the loss"):
        scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before)) and optimizer.steps_taken == 0


def test_other_dtypes_are_refused_by_name():
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    with pytest.raises(bg.Unsupported, match=r"dtype=torch.complex64: known are"):
        bg.PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=5), max_grad_norm=1.0,
            mechanism=MECHANISM,
        )  # fmt: skip
