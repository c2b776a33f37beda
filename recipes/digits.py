"""Train a three-layer perceptron on handwritten digits, and see where its memory went.

Result: at least 92.3 % test accuracy on 5000 MNIST digits, 3 points over logistic regression.

The last table measures one step of the trained model three times: as trained, under ``no_grad``,
and with the first hidden activation detached.
"""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data


class Perceptron(nn.Module):
    """Three linear layers with ReLU between; ``detach_hidden`` cuts the graph after the first."""

    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x, detach_hidden=False):
        x = F.relu(self.fc1(x))
        if detach_hidden:
            x = x.detach()
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def accuracy(model, x, y):
    """The share of right answers."""
    with lt.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def measure(device, step):
    """Run a step once; its peak bytes by role."""
    lt.reset_peak_memory_stats(device)
    step()
    return lt.memory_stats(device)["peak_by_role"]


def memory_table(model, x, y, device):
    """Peak bytes by role in training, under ``no_grad``, and with the hidden layer detached."""

    def train():
        F.cross_entropy(model(x), y).backward()
        model.zero_grad()

    def no_grad():
        with lt.no_grad():
            F.cross_entropy(model(x), y)

    def detached():
        F.cross_entropy(model(x, detach_hidden=True), y).backward()
        model.zero_grad()

    cases = {"training": train, "no_grad": no_grad, "hidden detached": detached}
    return {name: measure(device, step) for name, step in cases.items()}


def show(peaks, console, batch):
    """Print the closing table."""
    table = Table(title=f"Peak memory of one step, batch of {batch}, in bytes by role")
    table.add_column("role")
    for name in peaks:
        table.add_column(name, justify="right")
    roles = [r for r in next(iter(peaks.values())) if any(p[r] for p in peaks.values())]
    for role in roles:
        table.add_row(role, *[f"{p[role]:,}" for p in peaks.values()])
    table.add_section()
    table.add_row("peak", *[f"{sum(p.values()):,}" for p in peaks.values()])
    console.print(table)


def main():
    """Parse options, train, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after that many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", help="a folder with mnist_5k.csv.gz")
    parser.add_argument("--out", type=Path, help="write the results there, as JSON")
    parser.add_argument("--quick", action="store_true", help="two epochs")
    args = parser.parse_args()
    if args.quick:
        args.epochs = 2

    console = Console()
    console.print("Looking for handwritten digits")
    split = data.digits(args.data_dir, say=console.print)
    console.print(f"  found {split.source}: {len(split.y_train)} to train, {len(split.y_test)} to test")

    lt.manual_seed(args.seed)
    device = lt.device(args.device)
    x_train, y_train = (lt.tensor(a, device=device) for a in (split.x_train, split.y_train))
    x_test, y_test = (lt.tensor(a, device=device) for a in (split.x_test, split.y_test))
    model = Perceptron(x_train.shape[1], args.hidden, 10).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)

    per_epoch = len(y_train) // args.batch_size
    total = min(args.steps or per_epoch * args.epochs, per_epoch * args.epochs)
    began = time.perf_counter()
    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  live {task.fields[live]:.1f} MiB"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("train", total=total, loss=float("nan"), live=0.0)
        for step in range(total):
            if step % per_epoch == 0:
                order = lt.randperm(len(y_train), device=device)
            start = step % per_epoch * args.batch_size
            rows = order[start : start + args.batch_size]
            loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            live = lt.memory_allocated(device) / 2**20
            progress.update(task, advance=1, loss=loss.item(), live=live)
    seconds = time.perf_counter() - began

    score = accuracy(model, x_test, y_test)
    console.print(f"\n{total} steps in {seconds:.1f} s; test accuracy [bold]{score:.3f}[/bold]", end="")
    console.print(f" (logistic regression: {split.baseline})\n" if split.baseline else "\n")

    optimizer.zero_grad()
    rows = slice(0, args.batch_size)
    peaks = memory_table(model, x_train[rows], y_train[rows], device)
    show(peaks, console, args.batch_size)
    if args.out:
        result = {
            "accuracy": score, "baseline": split.baseline, "source": split.source, "steps": total,
            "seconds": seconds, "peak_bytes_by_role": peaks,
        }  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
