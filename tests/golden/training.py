"""The little training whose checkpoints are frozen here. It must stay as it is, like the checkpoints."""

from typing import Any

import torch


def build() -> dict[str, Any]:
    """Build the state of the frozen run, before any step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, betas=(0.9, 0.95))
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "generator": torch.Generator().manual_seed(5),
        "notes": {"half": torch.ones(2, dtype=torch.bfloat16), 3: (1, b"x", float("inf")), "z": torch.tensor(1 + 2j)},
    }


CONFIG = {"lr": 0.01, "betas": (0.9, 0.95), "name": "golden"}
EPOCHS = 2


def dataset() -> torch.utils.data.TensorDataset:
    """Ten samples of four numbers, and their sums."""
    x = torch.arange(40, dtype=torch.float32).reshape(10, 4) / 40
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def step(state: dict[str, Any], batch: list[torch.Tensor]) -> torch.Tensor:
    """Take one optimizer step; return the loss."""
    x, y = batch
    loss: torch.Tensor = torch.nn.functional.mse_loss(state["model"](x), y)
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    state["scheduler"].step()
    return loss
