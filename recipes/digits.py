"""Train a three-layer perceptron on handwritten digits, and see where its memory went.

Result: 94 % test accuracy on 5000 MNIST digits, where logistic regression has 89.3 %.

The last table measures one step of the trained model three times: as trained, under ``no_grad``,
and with the last hidden activation detached.
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
    """Three linear layers with ReLU and dropout between.

    ``detach_hidden`` cuts the graph before the last layer: only that one trains.
    """

    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x, detach_hidden=False):
        x = F.dropout(x, 0.2, self.training)
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        x = F.dropout(F.relu(self.fc2(x)), 0.5, self.training)
        if detach_hidden:
            x = x.detach()
        return self.fc3(x)


def accuracy(model, x, y):
    """The share of right answers."""
    model.eval()
    with lt.no_grad():
        score = (model(x).argmax(dim=1) == y).float().mean().item()
    model.train()
    return score


def measure(model, x, y, grad, detach_hidden):
    """Run one step; its peak bytes by role, and the bytes the graph held when forward ended."""
    lt.reset_peak_memory_stats(x.device)
    with lt.set_grad_enabled(grad):
        loss = F.cross_entropy(model(x, detach_hidden=detach_hidden), y)
    kept = lt.memory_stats(x.device)["by_role"]["saved"]
    if grad:
        loss.backward()
        model.zero_grad()
    return {"peak": lt.memory_stats(x.device)["peak_by_role"], "saved": kept}


def measure_cases(model, x, y):
    """The same step as in training, under ``no_grad``, and with the hidden layer detached."""
    return {
        "training": measure(model, x, y, grad=True, detach_hidden=False),
        "no_grad": measure(model, x, y, grad=False, detach_hidden=False),
        "hidden detached": measure(model, x, y, grad=True, detach_hidden=True),
    }


def show(cases, console, batch):
    """Print the closing table."""
    table = Table(
        title=f"Memory of one step with a batch of {batch}, in bytes",
        caption="A gradient in the making counts as temporary.",
    )
    table.add_column("")
    for name in cases:
        table.add_column(name, justify="right")
    table.add_row("kept for backward", *[f"{c['saved']:,}" for c in cases.values()])
    table.add_section()
    peaks = [c["peak"] for c in cases.values()]
    for role in peaks[0]:
        if any(p[role] for p in peaks):
            table.add_row(f"peak: {role}", *[f"{p[role]:,}" for p in peaks])
    table.add_section()
    table.add_row("peak in all", *[f"{sum(p.values()):,}" for p in peaks])
    console.print(table)


def main():
    """Parse options, train, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after that many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3, help="at the start; it falls to 0")
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
    console.print(
        f"  found {split.source}: {len(split.y_train)} to train, {len(split.y_test)} to test"
    )

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
            optimizer.param_groups[0]["lr"] = args.lr * (1 - step / total)
            loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            live = lt.memory_allocated(device) / 2**20
            progress.update(task, advance=1, loss=loss.item(), live=live)
    seconds = time.perf_counter() - began

    score = accuracy(model, x_test, y_test)
    console.print(
        f"\n{total} steps in {seconds:.1f} s; test accuracy [bold]{score:.3f}[/bold]", end=""
    )
    console.print(f" (logistic regression: {split.baseline})\n" if split.baseline else "\n")

    optimizer.zero_grad()
    first = slice(0, args.batch_size)
    cases = measure_cases(model, x_train[first], y_train[first])
    show(cases, console, args.batch_size)
    if args.out:
        result = {
            "accuracy": score, "baseline": split.baseline, "source": split.source, "steps": total,
            "seconds": seconds, "memory_bytes": cases,
        }  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
