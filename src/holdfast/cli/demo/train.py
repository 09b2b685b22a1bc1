"""The training script of the demo, as anybody would write one: a small GPT learns Python from the standard library.

::

    python -m holdfast.cli.demo.train --store runs/gpt --steps 300

The same command starts it and restarts it; the two lines that make it survive are marked.
"""

import argparse
import hashlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch script uses
from torch import Tensor

import holdfast

from .corpus import standard_library
from .gpt import GPT, VOCABULARY

EPOCHS = 3
SAVE_EVERY_STEPS = 10


class Windows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Windows spread evenly over the text, each shifted by chance when it is read: augmentation in the workers."""

    def __init__(self, text: bytes, windows: int, context: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.windows = windows
        self.context = context
        self.spacing = (len(text) - context - 1) // windows

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.spacing + int(torch.randint(self.spacing, ()))
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


def learning_rate(step: int, steps: int) -> float:
    """Factor at a step: up in a straight line over the first twentieth, then down along a cosine to a tenth."""
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / (steps - warm_up))))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.cli.demo.train", description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, help="where checkpoints go, and where training resumes from")
    parser.add_argument("--steps", type=int, default=300, help=f"optimizer steps, a multiple of {EPOCHS}")
    parser.add_argument("--batch", type=int, default=12, help="windows per step")
    parser.add_argument("--context", type=int, default=64, help="bytes per window")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="1 leaves the other core to loader workers and keeper")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main() -> None:
    """Train, or go on training."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)

    text = standard_library()
    model = GPT(layers=args.layers, width=args.width, heads=4, context=args.context, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    dataset = Windows(text, windows=args.steps * args.batch // EPOCHS, context=args.context)
    config = {name: value for name, value in vars(args).items() if name != "store"}
    config["text"] = hashlib.sha256(text).hexdigest()

    loader = holdfast.DataLoader(dataset, batch_size=args.batch, shuffle=True, num_workers=2, seed=args.seed)
    with holdfast.Run(  # survives: everything that training is, by name
        args.store,
        state={"model": model, "optimizer": optimizer, "scheduler": scheduler},
        config=config,
        may_lose="10min",
        settings=holdfast.Settings(every_steps=SAVE_EVERY_STEPS),
    ) as run:
        for inputs, targets in run.batches(loader, epochs=EPOCHS):  # survives: goes on where it was
            loss = F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            run.report(loss=loss, lr=scheduler.get_last_lr()[0])
            print(f"step {run.step + 1} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
