"""Train a three-layer perceptron on handwritten digits, and see where its memory went.

Result: 94 % test accuracy on 5000 MNIST digits, where logistic regression has 89.3 %.

Cost: 9 s, 22.3 MiB.

The last table measures one step of the trained model three times: as trained, under ``no_grad``,
and with the last hidden activation detached.
"""

from rich.console import Console
from rich.table import Table

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset


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
    table = Table(title=f"Memory of one step with a batch of {batch}, in bytes")
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
    parser = training.options(__doc__, epochs=20, batch_size=64, lr=2e-3)
    parser.add_argument("--hidden", type=int, default=256)
    args = parser.parse_args()
    if args.quick:
        args.epochs = 2

    console = Console()
    console.print("Looking for handwritten digits")
    split = data.digits(args.data_dir, say=console.print)
    console.print(f"  {split.source}: {len(split.y_train)} to train, {len(split.y_test)} to test")

    lt.manual_seed(args.seed)
    x, y, x_test, y_test = (lt.tensor(a, device=args.device) for a in split[:4])
    x, x_test = x.flatten(1), x_test.flatten(1)
    model = Perceptron(x.shape[1], args.hidden, 10).to(args.device)
    loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, drop_last=True)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=total)

    run = training.Run(
        "digits", args, total, console,
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader,
    )  # fmt: skip
    batches = training.batches(loader)
    for step in run:
        images, labels = next(batches)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss.item())
        if (step + 1) % len(loader) == 0:
            run.measure(accuracy=accuracy(model, x_test, y_test))

    optimizer.zero_grad()
    cases = measure_cases(model, x[: args.batch_size], y[: args.batch_size])
    show(cases, console, args.batch_size)
    run.finish(
        accuracy=accuracy(model, x_test, y_test), baseline=split.baseline, data=split.source,
        memory_bytes=cases,
    )  # fmt: skip


if __name__ == "__main__":
    main()
