"""The amplified laws in a training run: what is drawn, what is spent, what is written down."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import bluegrad as bg
from bluegrad import accounting
from oracles.training import examples, sgd, small_model

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def counted(monkeypatch):
    """The steps of the mechanisms whose epsilon is asked for from now on."""
    asked, real = [], accounting.epsilon

    def epsilon(mechanism, **options):
        asked.append(mechanism.steps)
        return real(mechanism, **options)

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    return asked


@pytest.mark.parametrize(("strategy", "law", "found_by", "chance"), [
    (bg.lambda_cgd(8, 0.5), bg.BallsInBins(8, 2), {"monte_carlo"}, 1e-6),
    (bg.toeplitz([1, 0.5], 8), bg.CyclicPoisson(8, 2, 0.5), {"pld"}, 0.0),
])  # fmt: skip
def test_a_run(strategy, law, found_by, chance, monkeypatch):
    mechanism = bg.calibrate(strategy, law, epsilon=4.0, delta=1e-5)
    model, engine = small_model(), bg.PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=sgd(model.parameters()),
        data_loader=DataLoader(examples(), batch_size=len(examples()) // 4),
        mechanism=mechanism,
        max_grad_norm=1.0,
    )
    assert engine.get_epsilon_spent(1e-5) == 0.0
    steps, spent, asked = 0, [], counted(monkeypatch)
    while steps < 8:
        for x, y in loader:
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps in (1, 2) and isinstance(law, bg.BallsInBins):
                assert 0.0 < engine.get_epsilon_spent(1e-5) < 4.0 and asked == [4]  # once an epoch: steps rounded up
        spent.append(engine.get_epsilon_spent(1e-5))
    assert spent == sorted(spent) and spent[-1] == engine.get_epsilon(1e-5) <= 4.0
    guarantee = engine.ledger(1e-5)["guarantee"]
    assert guarantee["law"] == law.describe()["law"] and guarantee["neighbours"] == "zero-out"
    assert {guarantee["method"]} == found_by and guarantee["failure_probability"] == chance
    assert type(guarantee["epsilon"]) is float
