"""A training as a user writes it; the scenario tests start it, kill it and start it again.

It prints one JSON line per batch (which batch, which samples, the loss and the random numbers it drew, all exactly),
one per epoch and one at the end: whatever a resume gets wrong shows as a line that differs.
"""

import argparse
import hashlib
import json
import random
import time

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast


class Noisy(torch.utils.data.Dataset):
    """Samples with augmentation drawn from every global generator."""

    def __init__(self, samples: int) -> None:
        made = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(samples, 8, generator=made)
        self.targets = self.inputs.sin().sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        shift = torch.from_numpy(np.random.normal(0, 0.1, 8)).float() + 0.1 * torch.randn(8)
        return self.inputs[index] * random.uniform(0.9, 1.1) + shift, self.targets[index], index


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--allow", nargs="*", default=())
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every-steps", type=int, default=4)
    parser.add_argument("--every-batches", type=int, default=0, help="ask for a save every so many batches")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--mid", action="store_true", help="save in the middle of an accumulation, too")
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that each batch takes at least")
    parser.add_argument("--ballast", type=float, default=0.0, help="MiB of parameters that only make saves slow")
    parser.add_argument("--overlap", action="store_true")
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    layers = (torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    layers[0].register_parameter("ballast", torch.nn.Parameter(torch.ones(int(args.ballast * (1 << 18)))))
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    noise = torch.Generator().manual_seed(3)
    notes = {"best": float("inf"), "epochs": ()}
    loader = holdfast.DataLoader(Noisy(96), batch_size=8, shuffle=True, num_workers=args.workers, seed=5)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": ema, "noise": noise}
    settings = holdfast.Settings(
        every_steps=args.every_steps,
        save_mid_accumulation=args.mid,
        keep=holdfast.Keep(last=args.keep),
        allow=args.allow,
        overlap=args.overlap,
    )
    config = {"lr": args.lr, "accumulate": args.accumulate, "shape": (8, 32)}
    with holdfast.Run(args.store, state={**state, "notes": notes}, config=config, settings=settings) as run:
        for epoch in range(run.epoch, args.epochs):
            for inputs, targets, indices in run.batches(loader, accumulate=args.accumulate):
                blurred = targets + 0.01 * torch.randn(targets.shape, generator=noise)
                loss = torch.nn.functional.mse_loss(model(inputs), blurred) * random.uniform(0.9, 1.1)
                (loss + 0.01 * layers[0].ballast.sum()).backward()
                if not run.accumulating:
                    optimizer.step()
                    optimizer.zero_grad()
                    ema.update_parameters(model)
                run.report(loss=loss)
                if args.every_batches and loader.batches % args.every_batches == 0:
                    run.save()
                drew = [random.random(), float(np.random.rand()), torch.rand(()).item()]
                samples = indices.tolist()
                say(batch=loader.seen, epoch=epoch, step=run.step, loss=loss.item(), samples=samples, drew=drew)
                time.sleep(args.pace)
            validation = (model(torch.ones(4, 8)).sum() + random.random()).item()
            scheduler.step()
            notes["best"] = min(notes["best"], validation)
            notes["epochs"] += ((epoch, validation),)
            run.report(validation=validation)
            say(epoch_end=epoch, validation=validation, lr=scheduler.get_last_lr(), notes=repr(notes["epochs"]))
    say(finished=True, step=run.step, weights=digest(model), ema=digest(ema), lr=scheduler.get_last_lr())


def digest(model: torch.nn.Module) -> str:
    """Hash all tensors of a model."""
    return hashlib.sha256(b"".join(bytes(value.numpy()) for value in model.state_dict().values())).hexdigest()


def say(**facts: object) -> None:
    """Print one line; floats come out so that they read back as the same bits."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(arguments())
