"""Predict the price of a diamond from nine features with a residual perceptron.

Result: R2 of the log price 0.990, where least squares on the same features has 0.979.

Cost: 41 s, 16.6 MiB.
"""

from rich.console import Console

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    """Normalize, widen, narrow, and add to what came in."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.body(x)


class Appraiser(nn.Module):
    """A linear layer beside a residual perceptron: the curve is learned on top of the line."""

    def __init__(self, features, width=64, depth=3):
        super().__init__()
        self.line = nn.Linear(features, 1)
        self.curve = nn.Sequential(
            nn.Linear(features, width),
            *[Residual(width) for _ in range(depth)],
            nn.LayerNorm(width),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.line(x) + self.curve(x)


@lt.no_grad()
def r2(model, x, y):
    """The share of the variance that is explained."""
    model.eval()
    errors = F.mse_loss(model(x), y)
    model.train()
    return 1 - (errors / y.var(correction=0)).item()


def main():
    """Parse options, train, test, report."""
    parser = training.options(__doc__, epochs=15, batch_size=256, lr=4e-3)
    parser.add_argument("--width", type=int, default=64, help="features of each block")
    parser.add_argument("--depth", type=int, default=3, help="number of residual blocks")
    args = parser.parse_args()
    if args.quick:
        args.epochs = 1

    console = Console()
    console.print("Looking for diamonds")
    table = data.diamonds(args.data_dir, say=console.print)
    console.print(f"  {table.source}: {len(table.y_train)} to train, {len(table.y_test)} to test")

    lt.manual_seed(args.seed)
    x, y, x_test, y_test = (
        lt.tensor(a, device=args.device)
        for a in (table.x_train, table.y_train, table.x_test, table.y_test)
    )
    model = Appraiser(len(table.features), args.width, args.depth).to(args.device)
    loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, drop_last=True)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=total + 1, cycle_momentum=False
    )
    average = optim.swa_utils.AveragedModel(
        model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.995)
    )

    run = training.Run(
        "diamonds",
        args,
        total,
        console,
        model=model,
        average=average,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
    )
    batches = training.batches(loader)
    for step in run:
        features, price = next(batches)
        loss = F.mse_loss(model(features), price)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
        run.log(loss.item())
        if (step + 1) % len(loader) == 0:
            run.measure(r2=r2(average, x_test, y_test))
    run.finish(r2=r2(average, x_test, y_test), baseline=table.baseline, data=table.source)


if __name__ == "__main__":
    main()
