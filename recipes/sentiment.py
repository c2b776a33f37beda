"""Fine-tune a pretrained MiniLM to tell good film reviews from bad ones.

Result: 0.82 accuracy on films it has not seen; tf-idf with logistic regression has 0.766.

Cost: 22 min, 660 MiB.
"""

from rich.console import Console

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.recipes import data, training
from lowtide.utils.data import DataLoader


class SelfAttention(nn.Module):
    """Attention among the tokens of a text, and the residual around it."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = (
            f(x).view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.dense(y.transpose(1, 2).reshape(B, T, C))
        return self.norm(x + self.dropout(y))


class Layer(nn.Module):
    """Attention, then a two-layer perceptron; each sum is normalized after it (post-LN)."""

    def __init__(self, width, heads, inner, dropout):
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout)
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.norm(x + self.dropout(self.narrow(F.gelu(self.widen(x)))))


class Encoder(nn.Module):
    """BERT's encoder (Devlin et al. 2019); ``forward`` gives the mean over a text's tokens."""

    def __init__(self, pieces, width=384, depth=6, heads=12, longest=512, dropout=0.1):
        super().__init__()
        self.word = nn.Embedding(pieces, width)
        self.position = nn.Embedding(longest, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([Layer(width, heads, 4 * width, dropout) for _ in range(depth)])
        for table in (self.word, self.position, self.kind):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens, real):
        positions = lt.arange(tokens.shape[1], device=tokens.device)
        x = self.word(tokens) + self.position(positions) + self.kind.weight[0]
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, real[:, None, None, :])
        weights = real[:, :, None].to(x.dtype)
        return (x * weights).sum(dim=1) / weights.sum(dim=1)


# Our names of the pretrained tensors, by theirs.
NAMES = {
    "embeddings.word_embeddings": "word",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "kind",
    "embeddings.LayerNorm": "norm",
    "encoder.layer.": "layers.",
    "attention.self.": "attention.",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention.norm",
    "intermediate.dense": "widen",
    "output.dense": "narrow",
    "output.LayerNorm": "norm",
}


def load_pretrained(encoder, weights):
    """Give the encoder the tensors of a safetensors file."""
    import io

    state = {}
    for name, value in lt.load(io.BytesIO(weights)).items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        state[name] = value
    wanted = encoder.state_dict()
    encoder.load_state_dict({k: v for k, v in state.items() if k in wanted})


class Classifier(nn.Module):
    """The encoder and a linear layer on its mean."""

    def __init__(self, encoder, width, classes=2, dropout=0.2):
        super().__init__()
        self.encoder, self.dropout = encoder, nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, real):
        return self.head(self.dropout(self.encoder(tokens, real)))


class Batcher:
    """Makes a batch of (numbers, label): padded tokens, which of them are real, labels."""

    def __init__(self, pad):
        self.pad = pad

    def __call__(self, samples):
        longest = max(len(numbers) for numbers, _ in samples)
        rows = [numbers + [self.pad] * (longest - len(numbers)) for numbers, _ in samples]
        tokens = lt.tensor(rows)
        return tokens, tokens != self.pad, lt.tensor([label for _, label in samples])


@lt.no_grad()
def accuracy(model, loader, device):
    """The share of right answers."""
    model.eval()
    right = count = 0
    for tokens, real, labels in loader:
        guess = model(tokens.to(device), real.to(device)).argmax(dim=1).cpu()
        right, count = right + (guess == labels).sum().item(), count + len(labels)
    model.train()
    return right / count


def main():
    """Parse options, train, test, report."""
    parser = training.options(__doc__, epochs=1, batch_size=32, lr=1e-4)
    parser.add_argument("--longest", type=int, default=64, help="tokens of a text that are used")
    args = parser.parse_args()

    console = Console()
    console.print("Looking for film reviews and a pretrained encoder")
    reviews = data.reviews(args.data_dir, say=console.print)
    pretrained = data.minilm(args.data_dir, say=console.print)
    keep, test = len(reviews.train), len(reviews.test)
    if args.quick:
        keep, test, args.longest = 64, 64, 24
    console.print(f"  {reviews.source}: {keep} to train, {test} to test")
    console.print(f"  encoder: {pretrained.source}")

    lt.manual_seed(args.seed)
    parts = []
    for texts, labels in (
        (reviews.train[:keep], reviews.y_train),
        (reviews.test[:test], reviews.y_test),
    ):
        numbers = [pretrained.pieces.encode(t, args.longest) for t in texts]
        parts.append(list(zip(numbers, labels.tolist(), strict=False)))
    if pretrained.weights is not None:
        encoder, width = Encoder(len(pretrained.pieces)), 384
        load_pretrained(encoder, pretrained.weights)
    else:
        encoder, width = Encoder(len(pretrained.pieces), width=96, depth=2, heads=4), 96
    model = Classifier(encoder, width).to(args.device)
    collate = Batcher(pretrained.pieces.pad)
    loader = DataLoader(parts[0], args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    by_length = sorted(parts[1], key=lambda sample: len(sample[0]))  # less padding
    test_loader = DataLoader(by_length, 64, collate_fn=collate)
    total = min(args.steps or len(loader) * args.epochs, len(loader) * args.epochs)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=total + 1, pct_start=0.1, cycle_momentum=False
    )

    run = training.Run(
        "sentiment",
        args,
        total,
        console,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
    )
    batches = training.batches(loader)
    for _ in run:
        tokens, real, labels = (t.to(args.device) for t in next(batches))
        loss = F.cross_entropy(model(tokens, real), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.log(loss.item())
    run.finish(
        accuracy=accuracy(model, test_loader, args.device),
        baseline=reviews.baseline,
        data=reviews.source,
    )


if __name__ == "__main__":
    main()
