"""Train a deep residual net (20 layers) on Fashion-MNIST.

Result: 90.7 % test accuracy after two epochs, and rising; logistic regression has 84.5 %.

Cost: 12 min, 363 MiB.
"""

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Two convolutions whose result is added to what came in (He et al. 2016)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()  # the input as it is
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of ``depth`` blocks; each stage halves the picture and doubles the channels."""

    def __init__(self, depth=3, width=16, channels=1, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = []
        inputs = width
        for stage in range(3):
            for block in range(depth):
                outputs = width * 2**stage
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Block(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)
        return self.head(x)


def augment(images, shift=2):
    """Mirror half of the pictures, and move each batch by up to ``shift`` pixels."""
    mirrored = lt.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    images = lt.where(mirrored, images.flip(-1), images)
    down, right = lt.randint(-shift, shift + 1, (2,)).tolist()
    size = images.shape[-1]
    padded = F.pad(images, (shift,) * 4)
    return padded[..., shift + down :, shift + right :][..., :size, :size]


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
    parser = training.options(__doc__, epochs=2, batch_size=128, lr=0.2)
    parser.add_argument("--depth", type=int, default=3, help="blocks in each of the three stages")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    args = parser.parse_args()

    ranks = training.Ranks()
    rows = ranks.part(args.batch_size)
    console = ranks.console()
    console.print("Looking for Fashion-MNIST")
    split = data.fashion(args.data_dir, say=console.print)
    keep, test = len(split.y_train), len(split.y_test)
    if args.quick:
        keep, test, args.epochs, args.depth, args.width = 640, 500, 1, 1, 8
    console.print(f"  {split.source}: {keep} to train, {test} to test")

    lt.manual_seed(args.seed)
    x, y = (lt.tensor(a[:keep], device=args.device) for a in (split.x_train, split.y_train))
    x_test, y_test = (lt.tensor(a[:test], device=args.device) for a in (split.x_test, split.y_test))
    model = ResNet(args.depth, args.width).to(args.device)
    size = sum(p.numel() for p in model.parameters())
    console.print(f"  {6 * args.depth + 2} layers, {size:,} parameters")
    shared = ranks.share(model)
    ranks.draw_apart(args.seed)
    loader = DataLoader(TensorDataset(*ranks.rows(x, y)), rows, shuffle=True, drop_last=True)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=total + 1, cycle_momentum=False
    )

    run = training.Run(
        "resnet",
        args,
        total,
        console,
        ranks,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
    )
    batches = training.batches(loader)
    for step in run:
        images, labels = next(batches)
        loss = F.cross_entropy(shared(augment(images)), labels)
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
