"""Tell nine speakers apart by two vowels, with an LSTM over sequences of unequal length.

Result: 97 % of 370 test sequences.

Cost: 10 s, 3.3 MiB.
"""

from rich.console import Console

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader


class Speaker(nn.Module):
    """A bidirectional LSTM; the mean of its states over the true length is classified."""

    def __init__(self, channels, hidden, classes, dropout=0.3):
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        mean = states.sum(dim=1) / lengths[:, None].to(states.device)
        return self.head(self.dropout(mean))


class Spoken:
    """Sequences and their labels, as a dataset."""

    def __init__(self, sequences, labels, noise=0.0):
        self.sequences = [lt.tensor(s) for s in sequences]
        self.labels, self.noise = labels.tolist(), noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        x = self.sequences[index]
        if self.noise:
            x = x + self.noise * lt.randn_like(x)
        return x, self.labels[index]


def collate(samples):
    """Pad the sequences of a batch with zeros: (batch, time, channels), lengths, labels."""
    sequences, labels = zip(*samples, strict=True)
    lengths = lt.tensor([len(s) for s in sequences])
    return pad_sequence(sequences, batch_first=True), lengths, lt.tensor(labels)


@lt.no_grad()
def accuracy(model, loader, device):
    """The share of right answers."""
    model.eval()
    right = count = 0
    for x, lengths, labels in loader:
        guess = model(x.to(device), lengths).argmax(dim=1).cpu()
        right, count = right + (guess == labels).sum().item(), count + len(labels)
    model.train()
    return right / count


def main():
    """Parse options, train, test, report."""
    parser = training.options(__doc__, epochs=40, batch_size=30, lr=4e-3)
    parser.add_argument("--hidden", type=int, default=48, help="size of the LSTM's state")
    args = parser.parse_args()
    if args.quick:
        args.epochs = 3

    console = Console()
    console.print("Looking for Japanese vowels")
    split = data.vowels(args.data_dir, say=console.print)
    console.print(f"  {split.source}: {len(split.y_train)} to train, {len(split.y_test)} to test")

    lt.manual_seed(args.seed)
    spoken = Spoken(split.x_train, split.y_train, noise=0.3)
    loader = DataLoader(spoken, args.batch_size, shuffle=True, collate_fn=collate)
    test = DataLoader(Spoken(split.x_test, split.y_test), 100, collate_fn=collate)
    model = Speaker(split.x_train[0].shape[1], args.hidden, split.classes).to(args.device)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    run = training.Run(
        "vowels",
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
        x, lengths, labels = next(batches)
        loss = F.cross_entropy(model(x.to(args.device), lengths), labels.to(args.device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.log(loss.item())
        if (step + 1) % (5 * len(loader)) == 0:
            run.measure(accuracy=accuracy(model, test, args.device))
    run.finish(accuracy=accuracy(model, test, args.device), data=split.source)


if __name__ == "__main__":
    main()
