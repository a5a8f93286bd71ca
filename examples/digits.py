"""Train a small network on 5,000 MNIST digits with correlated noise, in a plain PyTorch loop.

Run: python examples/digits.py [epochs]   (needs the extra "demo"; about ten seconds for five epochs)
"""

import sys

import torch
from torch.utils.data import DataLoader

import bluegrad as bg
from bluegrad.tasks.data import demo, to_tensor_dataset
from bluegrad.tasks.models import digits_cnn

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
epsilon, delta = 8.0, 1e-5

# 1. Data and model, as without privacy.
train, test = (to_tensor_dataset(part) for part in demo())
model = digits_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

# 2. Before spending any privacy: what would each mechanism cost over this many steps?
loader = DataLoader(train, batch_size=200)
steps = epochs * len(loader)
law, work = bg.FixedEpochs(steps, epochs), bg.PrefixSum(steps)
for strategy in (bg.identity(steps), bg.optimize.lambda_cgd(work, law), bg.optimize.nu_dp_ftrl(work, law)):
    print(f"{strategy!r:60} RMSE {bg.rmse(strategy, work, law):8.3f}")

# 3. Make the run private with lambda-CGD, which keeps no noise in memory.
engine = bg.PrivacyEngine()
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    target_epsilon=epsilon,
    target_delta=delta,
    epochs=epochs,
    max_grad_norm=1.0,
    strategy=bg.optimize.lambda_cgd,
)

# 4. The usual loop. Every batch takes exactly one step; one step more than planned raises.
for epoch in range(epochs):
    for images, labels in loader:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch + 1}: epsilon spent {engine.get_epsilon_spent(delta):.3f}")

# 5. What came out, and under which guarantee.
model.eval()
with torch.no_grad():
    images, labels = test.tensors
    accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
print(f"test accuracy {accuracy:.3f} at epsilon {engine.get_epsilon(delta):.4f}, delta {delta:g}")
