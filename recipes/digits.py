"""Train a three-layer perceptron on handwritten digits, and see where its memory went.

Result: 94 % test accuracy on 5000 MNIST digits, where logistic regression has 89.3 %.

Cost: 9 s, 22.3 MiB.

In the end one step of the trained model is profiled three times: as trained, under ``no_grad``,
and with the last hidden activation detached. A table says what is kept, a picture how it comes and
goes.
"""

from array import array

from rich.console import Console
from rich.table import Table

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.profiling import MemoryProfiler
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset

DRAWN = ("saved", "temporary", "gradient")  # roles


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
    """Profile one step: the bytes that it takes, and how they come and go."""
    with MemoryProfiler(modules={"model": model}, lines=False) as prof:
        with lt.set_grad_enabled(grad):
            loss = F.cross_entropy(model(x, detach_hidden=detach_hidden), y)
        kept = lt.memory_stats(x.device)["by_role"]["saved"]
        if grad:
            loss.backward()
        gradients = lt.memory_stats(x.device)["by_role"]["gradient"]
        del loss
    model.zero_grad()
    tide = prof.timeline("role", device=x.device)
    for series in (tide.total, *tide.series.values()):
        series[:] = array("q", [n - series[0] for n in series])  # without what was there before
    return {"saved": kept, "gradients": gradients, "peak": max(tide.total)}, tide


def measure_cases(model, x, y):
    """The same step as in training, under ``no_grad``, and with the hidden layer detached."""
    return {
        "as trained": measure(model, x, y, grad=True, detach_hidden=False),
        "under no_grad": measure(model, x, y, grad=False, detach_hidden=False),
        "hidden detached": measure(model, x, y, grad=True, detach_hidden=True),
    }


def show(cases, console, batch, device):
    """Print the closing table, and a picture of each case."""
    table = Table(title=f"What one step with a batch of {batch} takes, in bytes")
    table.add_column("")
    for name in cases:
        table.add_column(name, justify="right")
    rows = {
        "activations kept for backward": "saved",
        "gradients": "gradients",
        "at most at once, all together": "peak",
    }
    for words, key in rows.items():
        table.add_row(words, *[f"{figures[key]:,}" for figures, _ in cases.values()])
    console.print(table)
    there = lt.memory_stats(device)["by_role"]
    console.print(
        f"Always there: {there['input']:,} of data, {there['parameter']:,} of parameters, "
        f"{there['optimizer']:,} of the optimizer's state.\n",
        highlight=False,
    )
    plain = "█".encode(console.encoding, "replace") == b"?"
    top = max(figures["peak"] for figures, _ in cases.values())
    for name, (figures, tide) in cases.items():
        console.print(f"[bold]{name}[/bold]: at most {figures['peak']:,}", highlight=False)
        picture = tide.draw(DRAWN, min(console.width, 72), 6, top, plain)
        console.print(picture.lstrip("\n"), highlight=False, markup=False)
    shades = "#*+" if plain else "█▓▒"
    parts = ("kept for backward", "other activations", "gradients")
    legend = ", ".join(f"{shade} {part}" for shade, part in zip(shades, parts, strict=True))
    console.print(f"{legend}; left forward, right backward.", highlight=False, markup=False)


def main():
    """Parse options, train, test, report."""
    parser = training.options(__doc__, epochs=20, batch_size=64, lr=2e-3)
    parser.add_argument("--hidden", type=int, default=256, help="features of the hidden layers")
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
        "digits",
        args,
        total,
        console,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
    )
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
    show(cases, console, args.batch_size, args.device)
    run.finish(
        accuracy=accuracy(model, x_test, y_test),
        baseline=split.baseline,
        data=split.source,
        memory_bytes={name: figures for name, (figures, _) in cases.items()},
    )


if __name__ == "__main__":
    main()
