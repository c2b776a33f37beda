"""Models in the style of public PyTorch code, trained by both frameworks from the same weights.

Each is written once, as its authors would, against the names ``torch``, ``nn`` and ``F``; for
lowtide these are ``lowtide``, ``lowtide.nn`` and ``lowtide.nn.functional``. Nothing else differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
einops = pytest.importorskip("einops")
pytestmark = pytest.mark.parity


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    lt.set_default_dtype(getattr(lt, request.param))
    yield request.param
    torch.set_default_dtype(before)


def frameworks():
    """(torch, nn, F, einops layers) of lowtide, then of PyTorch."""
    import einops.layers.torch

    from lowtide.nn import einops as layers

    yield lt, lt.nn, lt.nn.functional, layers
    yield torch, torch.nn, torch.nn.functional, einops.layers.torch


# An LSTM language model


def make_language_model(torch, nn, F, layers):
    class RNNModel(nn.Module):
        """An encoder, a recurrent module and a decoder, whose weight may be the encoder's."""

        def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.5, tie_weights=False):
            super().__init__()
            self.ntoken = ntoken
            self.drop = nn.Dropout(dropout)
            self.encoder = nn.Embedding(ntoken, ninp)
            if rnn_type in ["LSTM", "GRU"]:
                self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=dropout)
            else:
                nonlinearity = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}[rnn_type]
                self.rnn = nn.RNN(ninp, nhid, nlayers, nonlinearity=nonlinearity, dropout=dropout)
            self.decoder = nn.Linear(nhid, ntoken)
            if tie_weights:
                if nhid != ninp:
                    raise ValueError("When using the tied flag, nhid must be equal to emsize")
                self.decoder.weight = self.encoder.weight
            self.init_weights()
            self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers

        def init_weights(self):
            initrange = 0.1
            nn.init.uniform_(self.encoder.weight, -initrange, initrange)
            nn.init.zeros_(self.decoder.bias)
            self.decoder.weight.data.uniform_(-initrange, initrange)

        def forward(self, input, hidden):
            emb = self.drop(self.encoder(input))
            self.rnn.flatten_parameters()
            output, hidden = self.rnn(emb, hidden)
            output = self.drop(output)
            decoded = self.decoder(output)
            decoded = decoded.view(-1, self.ntoken)
            return F.log_softmax(decoded, dim=1), hidden

        def init_hidden(self, bsz):
            weight = next(self.parameters())
            shape = (self.nlayers, bsz, self.nhid)
            if self.rnn_type == "LSTM":
                return (weight.new_zeros(shape), weight.new_zeros(shape))
            return weight.new_zeros(shape)

    return RNNModel


def repackage_hidden(torch, h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(torch, v) for v in h)


def train_language_model(torch, nn, F, layers, model, rounds=3):
    corpus = torch.tensor(np.random.default_rng(1).integers(0, 13, 400))
    nbatch = corpus.size(0) // 4
    data = corpus.narrow(0, 0, nbatch * 4).view(4, -1).t().contiguous()
    criterion = nn.NLLLoss()
    model.train()
    hidden = model.init_hidden(4)
    losses, lr = [], 5.0
    for i in range(0, rounds * 7, 7):
        seq_len = min(7, len(data) - 1 - i)
        source, target = data[i : i + seq_len], data[i + 1 : i + 1 + seq_len].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(torch, hidden)
        output, hidden = model(source, hidden)
        loss = criterion(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        output, _ = model(data[:7], model.init_hidden(4))
        losses.append(math.exp(criterion(output, data[1:8].view(-1)).item()))
    return losses


# A GPT


@dataclass
class GPTConfig:
    block_size: int = 8
    vocab_size: int = 13
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 12
    dropout: float = 0.0
    bias: bool = True
    flash: bool = True


def make_gpt(torch, nn, F, layers):
    class LayerNorm(nn.Module):
        """LayerNorm with an optional bias."""

        def __init__(self, ndim, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(ndim))
            self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

        def forward(self, input):
            return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)

    class CausalSelfAttention(nn.Module):
        def __init__(self, config):
            super().__init__()
            assert config.n_embd % config.n_head == 0
            self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
            self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
            self.attn_dropout = nn.Dropout(config.dropout)
            self.resid_dropout = nn.Dropout(config.dropout)
            self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
            self.flash = hasattr(F, "scaled_dot_product_attention") and config.flash
            if not self.flash:
                mask = torch.tril(torch.ones(config.block_size, config.block_size))
                self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            if self.flash:
                y = F.scaled_dot_product_attention(
                    q,
                    k,
                    v,
                    attn_mask=None,
                    dropout_p=self.dropout if self.training else 0,
                    is_causal=True,
                )
            else:
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
                att = F.softmax(att, dim=-1)
                att = self.attn_dropout(att)
                y = att @ v
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.resid_dropout(self.c_proj(y))

    class MLP(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
            self.gelu = nn.GELU()
            self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
            self.dropout = nn.Dropout(config.dropout)

        def forward(self, x):
            return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))

    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
            self.attn = CausalSelfAttention(config)
            self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
            self.mlp = MLP(config)

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.transformer = nn.ModuleDict(
                dict(  # noqa: C408 - as such code has it
                    wte=nn.Embedding(config.vocab_size, config.n_embd),
                    wpe=nn.Embedding(config.block_size, config.n_embd),
                    drop=nn.Dropout(config.dropout),
                    h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                    ln_f=LayerNorm(config.n_embd, bias=config.bias),
                )
            )
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
            self.transformer.wte.weight = self.lm_head.weight
            self.apply(self._init_weights)
            for pn, p in self.named_parameters():
                if pn.endswith("c_proj.weight"):
                    torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

        def get_num_params(self):
            count = sum(p.numel() for p in self.parameters())
            return count - self.transformer.wpe.weight.numel()

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
                if module.bias is not None:
                    torch.nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

        def forward(self, idx, targets=None):
            device = idx.device
            _, t = idx.size()
            assert t <= self.config.block_size
            pos = torch.arange(0, t, dtype=torch.long, device=device)
            tok_emb = self.transformer.wte(idx)
            pos_emb = self.transformer.wpe(pos)
            x = self.transformer.drop(tok_emb + pos_emb)
            for block in self.transformer.h:
                x = block(x)
            x = self.transformer.ln_f(x)
            if targets is None:
                return self.lm_head(x[:, [-1], :]), None
            logits = self.lm_head(x)
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
            return logits, loss

        def configure_optimizers(self, weight_decay, learning_rate, betas):
            params = {pn: p for pn, p in self.named_parameters() if p.requires_grad}
            decay = [p for p in params.values() if p.dim() >= 2]
            nodecay = [p for p in params.values() if p.dim() < 2]
            groups = [
                {"params": decay, "weight_decay": weight_decay},
                {"params": nodecay, "weight_decay": 0.0},
            ]
            return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)

        @torch.no_grad()
        def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
            for _ in range(max_new_tokens):
                size = self.config.block_size
                idx_cond = idx if idx.size(1) <= size else idx[:, -size:]
                logits, _ = self(idx_cond)
                logits = logits[:, -1, :] / temperature
                if top_k is not None:
                    v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                    logits[logits < v[:, [-1]]] = -float("Inf")
                probs = F.softmax(logits, dim=-1)
                idx_next = torch.multinomial(probs, num_samples=1)
                idx = torch.cat((idx, idx_next), dim=1)
            return idx

    return GPT


def train_gpt(torch, nn, F, layers, model, rounds=4):
    data = torch.from_numpy(np.random.default_rng(2).integers(0, 13, 300).astype(np.int64))
    optimizer = model.configure_optimizers(0.1, 1e-2, (0.9, 0.95))
    losses = []
    rng = np.random.default_rng(3)
    for _ in range(rounds):
        ix = rng.integers(0, len(data) - 8, (4,)).tolist()
        x = torch.stack([data[i : i + 8] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + 8] for i in ix])
        y[0, :3] = -1
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    model.eval()
    # The most likely token only, since the random streams differ.
    made = model.generate(torch.zeros((1, 1), dtype=torch.long), 10, temperature=0.8, top_k=1)
    return losses + made[0].tolist() + [model.get_num_params()]


# A vision transformer


def make_vit(torch, nn, F, layers):
    from einops import rearrange, repeat

    def pair(t):
        return t if isinstance(t, tuple) else (t, t)

    class FeedForward(nn.Module):
        def __init__(self, dim, hidden_dim, dropout=0.0):
            super().__init__()
            self.net = nn.Sequential(
                nn.LayerNorm(dim),
                nn.Linear(dim, hidden_dim),
                nn.GELU(),
                nn.Dropout(dropout),
                nn.Linear(hidden_dim, dim),
                nn.Dropout(dropout),
            )

        def forward(self, x):
            return self.net(x)

    class Attention(nn.Module):
        def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
            super().__init__()
            inner_dim = dim_head * heads
            self.heads = heads
            self.scale = dim_head**-0.5
            self.norm = nn.LayerNorm(dim)
            self.attend = nn.Softmax(dim=-1)
            self.dropout = nn.Dropout(dropout)
            self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
            project_out = not (heads == 1 and dim_head == dim)
            self.to_out = (
                nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))
                if project_out
                else nn.Identity()
            )

        def forward(self, x):
            x = self.norm(x)
            qkv = self.to_qkv(x).chunk(3, dim=-1)
            q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in qkv)
            dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
            attn = self.dropout(self.attend(dots))
            out = torch.matmul(attn, v)
            out = rearrange(out, "b h n d -> b n (h d)")
            return self.to_out(out)

    class Transformer(nn.Module):
        def __init__(self, dim, depth, heads, dim_head, mlp_dim, dropout=0.0):
            super().__init__()
            self.norm = nn.LayerNorm(dim)
            self.layers = nn.ModuleList([])
            for _ in range(depth):
                attention = Attention(dim, heads=heads, dim_head=dim_head, dropout=dropout)
                self.layers.append(
                    nn.ModuleList([attention, FeedForward(dim, mlp_dim, dropout=dropout)])
                )

        def forward(self, x):
            for attn, ff in self.layers:
                x = attn(x) + x
                x = ff(x) + x
            return self.norm(x)

    class ViT(nn.Module):
        def __init__(
            self, *, image_size, patch_size, num_classes, dim, depth, heads, mlp_dim, pool="cls",
            channels=3, dim_head=64, dropout=0.0, emb_dropout=0.0,
        ):  # fmt: skip
            super().__init__()
            (image_height, image_width), (patch_height, patch_width) = map(
                pair, (image_size, patch_size)
            )
            assert image_height % patch_height == 0
            num_patches = (image_height // patch_height) * (image_width // patch_width)
            patch_dim = channels * patch_height * patch_width
            self.to_patch_embedding = nn.Sequential(
                layers.Rearrange(
                    "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=patch_height, p2=patch_width
                ),
                nn.LayerNorm(patch_dim),
                nn.Linear(patch_dim, dim),
                nn.LayerNorm(dim),
            )
            self.pos_embedding = nn.Parameter(torch.randn(1, num_patches + 1, dim))
            self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
            self.dropout = nn.Dropout(emb_dropout)
            self.transformer = Transformer(dim, depth, heads, dim_head, mlp_dim, dropout)
            self.pool = pool
            self.to_latent = nn.Identity()
            self.mlp_head = nn.Linear(dim, num_classes)

        def forward(self, img):
            x = self.to_patch_embedding(img)
            b, n, _ = x.shape
            cls_tokens = repeat(self.cls_token, "1 1 d -> b 1 d", b=b)
            x = torch.cat((cls_tokens, x), dim=1)
            x += self.pos_embedding[:, : (n + 1)]
            x = self.dropout(x)
            x = self.transformer(x)
            x = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
            return self.mlp_head(self.to_latent(x))

    return ViT


def train_vit(torch, nn, F, layers, model, rounds=3):
    rng = np.random.default_rng(4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    for _ in range(rounds):
        images = torch.tensor(rng.normal(size=(4, 3, 8, 8)), dtype=torch.get_default_dtype())
        labels = torch.tensor(rng.integers(0, 5, 4))
        optimizer.zero_grad()
        logits = model(images.to(device))
        loss = criterion(logits, labels.to(device))
        loss.backward()
        optimizer.step()
        correct = (logits.argmax(dim=-1) == labels).float().mean()
        losses += [loss.item(), correct.item()]
    return losses


MODELS = {
    "lstm": (make_language_model, train_language_model, ("LSTM", 13, 8, 8, 2, 0.0, True), {}),
    "gru": (make_language_model, train_language_model, ("GRU", 13, 6, 8, 1, 0.0), {}),
    "rnn": (make_language_model, train_language_model, ("RNN_RELU", 13, 6, 8, 2, 0.0), {}),
    "gpt": (make_gpt, train_gpt, (GPTConfig(),), {}),
    "gpt by hand": (make_gpt, train_gpt, (GPTConfig(flash=False, bias=False),), {}),
    "vit": (
        make_vit, train_vit, (),
        {"image_size": 8, "patch_size": 4, "num_classes": 5, "dim": 12, "depth": 2, "heads": 2,
         "mlp_dim": 16, "dim_head": 4},
    ),
    "vit of means": (
        make_vit, train_vit, (),
        {"image_size": (8, 8), "patch_size": (2, 4), "num_classes": 5, "dim": 8, "depth": 1,
         "heads": 1, "mlp_dim": 16, "dim_head": 8, "pool": "mean"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_losses_of_pytorch(name, dtype):
    make, train, args, kwargs = MODELS[name]
    ours, theirs = frameworks()
    model, oracle = make(*ours)(*args, **kwargs), make(*theirs)(*args, **kwargs)
    weights = {k: lt.tensor(v.numpy()) for k, v in oracle.state_dict().items()}
    assert str(model.load_state_dict(weights)) == "<All keys matched successfully>"
    assert repr(model) == repr(oracle)
    rtol = {"float32": 2e-4, "float64": 1e-9}[dtype]
    losses, expected = train(*ours, model), train(*theirs, oracle)
    np.testing.assert_allclose(losses, expected, rtol=rtol, atol=1e-9)
    trained = model.state_dict()
    for k, v in oracle.state_dict().items():
        np.testing.assert_allclose(
            trained[k].numpy(), v.numpy(), rtol=50 * rtol, atol=50 * rtol, err_msg=k
        )


@pytest.mark.parametrize("name", ["lstm", "gpt", "vit"])
def test_the_model_runs_on_meta_without_bytes(name):
    make, _, args, kwargs = MODELS[name]
    with lt.device("meta"):
        model = make(*next(frameworks()))(*args, **kwargs)
    assert {p.device.type for p in model.parameters()} == {"meta"}
