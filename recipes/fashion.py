"""Train a small convolutional net on Fashion-MNIST.

Result: 92 % test accuracy, where logistic regression has 84.5 %.

Cost: 3.3 min, 270 MiB.
"""

from rich.console import Console

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions with batch norm and pooling, then two linear layers."""

    def __init__(self, width=32, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(128, classes),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


@lt.no_grad()
def accuracy(model, x, y, batch=250):
    """The share of right answers."""
    model.eval()
    right = 0
    for start in range(0, len(y), batch):
        scores = model(x[start : start + batch])
        right += (scores.argmax(dim=1) == y[start : start + batch]).sum().item()
    model.train()
    return right / len(y)


def main():
    """Parse options, train, test, report."""
    parser = training.options(__doc__, epochs=4, batch_size=128, lr=4e-3)
    parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
    args = parser.parse_args()

    console = Console()
    console.print("Looking for Fashion-MNIST")
    split = data.fashion(args.data_dir, say=console.print)
    keep = 2000 if args.quick else len(split.y_train)
    if args.quick:
        args.epochs = 2
    console.print(f"  {split.source}: {keep} to train, {len(split.y_test)} to test")

    lt.manual_seed(args.seed)
    x, y = (lt.tensor(a[:keep], device=args.device) for a in (split.x_train, split.y_train))
    x_test, y_test = (lt.tensor(a, device=args.device) for a in (split.x_test, split.y_test))
    model = Net(args.width).to(args.device)
    loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, drop_last=True)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=total + 1)

    run = training.Run(
        "fashion",
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
    run.finish(accuracy=accuracy(model, x_test, y_test), baseline=split.baseline, data=split.source)


if __name__ == "__main__":
    main()
