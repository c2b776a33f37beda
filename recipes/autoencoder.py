"""Train a variational autoencoder on Fashion-MNIST, and draw new clothes.

Result: 243 nats for a test picture (an upper bound of its negative log-likelihood), and a picture
of samples, ``samples.png``.

Cost: 2.4 min, 228 MiB.
"""

from pathlib import Path

from rich.console import Console

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader, TensorDataset


class Autoencoder(nn.Module):
    """Down to a normal distribution over codes, and up again (Kingma and Welling 2014)."""

    def __init__(self, code=16, width=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, 128),
            nn.SiLU(),
            nn.Linear(128, 2 * code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 128),
            nn.SiLU(),
            nn.Linear(128, 2 * width * 7 * 7),
            nn.SiLU(),
            nn.Unflatten(1, (2 * width, 7, 7)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        )
        self.code = code

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + lt.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


def bound(model, x):
    """Nats of a picture: its reconstruction and its code, averaged over the batch."""
    logits, mean, log_variance = model(x)
    picture = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    code = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum()
    return (picture + code) / len(x)


@lt.no_grad()
def held_out_bound(model, x, batch=250):
    """The bound over a test set."""
    model.eval()
    total = sum(bound(model, part).item() * len(part) for part in x.split(batch))
    model.train()
    return total / len(x)


@lt.no_grad()
def draw(model, x, path):
    """Pictures, their reconstructions, and samples: three rows of ten, then two more of samples."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    model.eval()
    again = model.decoder(model.encoder(x[:10]).chunk(2, dim=1)[0])
    made = model.decoder(lt.randn(30, model.code, device=x.device))
    model.train()
    tiles = [*x[:10], *again.sigmoid(), *made.sigmoid()]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    words = ("real", "rebuilt", "made up", "made up", "made up")
    for k, axis in enumerate(figure.subplots(5, 10).flat):
        axis.imshow(tiles[k][0].cpu().numpy(), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        if k % 10 == 0:
            axis.set_ylabel(words[k // 10], fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main():
    """Parse options, train, draw, report."""
    parser = training.options(__doc__, epochs=5, batch_size=128, lr=2e-3)
    parser.add_argument("--code", type=int, default=16, help="size of the code of a picture")
    args = parser.parse_args()

    console = Console()
    console.print("Looking for Fashion-MNIST")
    split = data.fashion(args.data_dir, say=console.print)
    keep, test = len(split.x_train), len(split.x_test)
    if args.quick:
        keep, test, args.epochs = 1280, 500, 2
    console.print(f"  {split.source}: {keep} to train, {test} to test")

    lt.manual_seed(args.seed)
    x = lt.tensor(split.x_train[:keep], device=args.device)
    x_test = lt.tensor(split.x_test[:test], device=args.device)
    model = Autoencoder(args.code).to(args.device)
    loader = DataLoader(TensorDataset(x), args.batch_size, shuffle=True, drop_last=True)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    run = training.Run(
        "autoencoder",
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
        (images,) = next(batches)
        loss = bound(model, images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss.item())
        if (step + 1) % len(loader) == 0:
            run.measure(bound=held_out_bound(model, x_test))
    draw(model, x_test, Path(run.folder) / "samples.png")
    run.finish(bound=held_out_bound(model, x_test), data=split.source)


if __name__ == "__main__":
    main()
