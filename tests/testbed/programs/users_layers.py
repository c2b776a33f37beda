"""Small packages of ordinary authors: layers, losses, functions of their own, and summaries.

One or two people wrote each of them, most for one paper: reversed gradients,
sparsemax, tagging, structural similarity, Bayesian layers, convolutions over time, liquid
networks, adapters, and the tables and counts that people print of their models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.testbed.training import Rows, array, fill, filled, listed, program, trained


def small_net() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )


def numbers_in(text: str) -> np.ndarray:
    """The characters of a printed table, which must be the same to the last."""
    return np.frombuffer(text.encode(), np.uint8)


@program("pytorch-revgrad")
def two_domains() -> Rows:
    from pytorch_revgrad import RevGrad

    body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())
    heads = torch.nn.ModuleDict(
        {
            "label": torch.nn.Linear(8, 3),
            "domain": torch.nn.Sequential(RevGrad(alpha=0.7), torch.nn.Linear(8, 2)),
        }
    )
    model = torch.nn.ModuleList([body, heads])
    x, y, domain = filled(12, 6), listed(3, 12), listed(2, 12)

    def loss() -> Any:
        found = body(x)
        return F.cross_entropy(heads["label"](found), y) + F.cross_entropy(
            heads["domain"](found), domain
        )

    return trained(model, loss, lr=0.05)


@program("sparsemax")
def sparse_attention() -> Rows:
    from sparsemax import Sparsemax

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.asks, self.says = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.rows, self.columns = Sparsemax(dim=-1), Sparsemax(dim=1)

        def forward(self, x: Any) -> Any:
            scores = self.asks(x) @ self.says(x).mT
            return (self.rows(3 * scores) + self.columns(scores)) @ x

    model, x, y = Attention(), filled(3, 5, 4), filled(3, 5, 4, salt=1)
    return trained(model, lambda: F.mse_loss(model(x), y), lr=0.05)


@program("pytorch-crf")
def tagger() -> Rows:
    from torchcrf import CRF

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(11, 6)
            self.read = torch.nn.LSTM(6, 4, bidirectional=True, batch_first=True)
            self.score = torch.nn.Linear(8, 5)
            self.crf = CRF(5, batch_first=True)

        def forward(self, words: Any) -> Any:
            return self.score(self.read(self.embed(words))[0])

    model, words, tags = Tagger(), listed(11, 4, 7), listed(5, 4, 7)
    mask = torch.arange(7) < torch.tensor([7, 5, 6, 3]).unsqueeze(1)
    rows = trained(
        model, lambda: -model.crf(model(words), tags, mask, reduction="token_mean"), lr=0.05
    )
    best = model.crf.decode(model(words), mask)
    return {**rows, "tags": np.array([tag for line in best for tag in line])}


@program("pytorch-msssim", tolerance=1e-4)  # its window is made in float32
def denoiser() -> Rows:
    from pytorch_msssim import MS_SSIM, SSIM

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(4, 1, 3, padding=1)
    )
    clean = filled(2, 1, 40, 40).sigmoid()
    noisy = clean + 0.1 * filled(2, 1, 40, 40, salt=1)
    similar = SSIM(data_range=1.0, channel=1, nonnegative_ssim=True)
    at_scales = MS_SSIM(data_range=1.0, channel=1, win_size=3)

    def loss() -> Any:
        found = noisy + 0.1 * model(noisy)
        return 2 - similar(found, clean) - at_scales(found, clean)

    return trained(model, loss, lr=0.05)


@program("torchsummary", "float32")
def printed_table() -> Rows:
    import contextlib
    import io

    from torchsummary import summary

    model, text = fill(small_net()), io.StringIO()
    with contextlib.redirect_stdout(text):
        summary(model, (1, 8, 8), batch_size=4, device="cpu")
    return {
        "text": numbers_in(text.getvalue()),
        **trained(model, lambda: model(filled(4, 1, 8, 8)).square().mean(), steps=3),
    }


@program("torchinfo", "float32")
def counts_of_layers() -> Rows:
    from torchinfo import summary

    columns = [
        "input_size",
        "output_size",
        "num_params",
        "params_percent",
        "kernel_size",
        "mult_adds",
        "trainable",
    ]
    net = summary(small_net(), (4, 1, 8, 8), col_names=columns, verbose=0, depth=2)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    shared = torch.nn.ModuleDict({"a": torch.nn.LSTM(8, 5, 2), "b": layer})
    shared["again"] = shared["a"]
    other = summary(layer, input_data=filled(2, 3, 8), verbose=0, depth=4, col_names=columns)
    lstm = summary(shared["a"], input_data=[filled(2, 3, 8)], verbose=0, col_names=columns)
    never = summary(shared, verbose=0, row_settings=["var_names", "depth"])
    return {
        name: numbers_in(str(found))
        for name, found in (("net", net), ("layer", other), ("lstm", lstm), ("never", never))
    }


@program("thop", "float32")
def operations() -> Rows:
    import thop

    found = {
        "net": thop.profile(fill(small_net()), (filled(2, 1, 8, 8),), verbose=False),
        "lstm": thop.profile(torch.nn.LSTM(4, 6, 2), (filled(5, 2, 4),), verbose=False),
        "upsample": thop.profile(
            torch.nn.Sequential(
                torch.nn.ConvTranspose2d(1, 2, 3),
                torch.nn.PReLU(),
                torch.nn.Upsample(scale_factor=2),
                torch.nn.AdaptiveAvgPool2d(3),
                torch.nn.Softmax(1),
            ),
            (filled(2, 1, 8, 8),),
            verbose=False,
        ),
    }
    return {name: np.array([float(value) for value in pair]) for name, pair in found.items()}


@program("blitz-bayesian-pytorch", "float32")
def weights_with_spread() -> Rows:
    from blitz.modules import BayesianLinear, BayesianLSTM
    from blitz.utils import variational_estimator

    @variational_estimator
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.last = BayesianLSTM(3, 5), BayesianLinear(5, 1)

        def forward(self, x: Any) -> Any:
            return self.last(self.read(x)[0][:, -1])

    model, x, y = fill(Net()), filled(6, 4, 3), filled(6, 1, salt=1)
    loss = torch.nn.MSELoss()
    return trained(
        model,
        lambda: model.sample_elbo(x, y, loss, sample_nbr=2, complexity_cost_weight=1e-3),
        lr=1e-2,
        steps=8,
    )


@program("torchbnn", "float32")
def network_of_distributions() -> Rows:
    import torchbnn

    model = torch.nn.Sequential(
        torchbnn.BayesConv2d(0, 0.1, in_channels=1, out_channels=3, kernel_size=3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torchbnn.BayesLinear(0, 0.1, in_features=48, out_features=3),
    )
    x, y, divergence = filled(8, 1, 6, 6), listed(3, 8), torchbnn.BKLLoss(reduction="mean")
    return trained(model, lambda: F.cross_entropy(model(x), y) + 0.01 * divergence(model))


@program("pytorch-tcn", "float32")
def convolutions_over_time() -> Rows:
    from pytorch_tcn import TCN

    model = TCN(
        2,
        [4, 4, 3],
        kernel_size=3,
        dropout=0.0,
        use_skip_connections=True,
        use_gate=True,
        embedding_shapes=[(5,)],
        output_projection=1,
    )
    x, y, where = filled(3, 2, 12), filled(3, 1, 12, salt=1), filled(3, 5, salt=2)
    rows = trained(model, lambda: F.mse_loss(model(x, embeddings=where), y), lr=0.01)
    model.eval()
    model.reset_buffers()
    with torch.no_grad():  # frame by frame
        parts = [
            model(x[:1, :, t : t + 4], embeddings=where[:1], inference=True) for t in (0, 4, 8)
        ]
    return {**rows, "streamed": array(torch.cat(parts, -1))}


@program("ncps", "float32")
def liquid_network() -> Rows:
    from ncps.torch import LTC, CfC
    from ncps.wirings import AutoNCP

    x, y = filled(3, 6, 2), filled(3, 6, 1, salt=1)
    rows: Rows = {}
    made = {
        "ltc": LTC(2, AutoNCP(10, 1), batch_first=True),
        "cfc": CfC(2, AutoNCP(10, 1), batch_first=True),
        "plain": CfC(2, 7, proj_size=1, mode="pure", mixed_memory=True),
    }
    for name, model in made.items():
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def loss(model: Any = model) -> Any:
            return F.mse_loss(model(x)[0], y)

        found = trained(model, loss, steps=5, optimizer=optimizer, fresh=name != "ltc")
        rows.update({f"{name} {key}": value for key, value in found.items()})
    return rows


@program("torch-dct")
def compressed_layer() -> Rows:
    import torch_dct

    model, x = torch_dct.LinearDCT(8, "dct", norm="ortho"), filled(3, 4, 8)
    weights = torch.nn.ParameterDict({"a": torch.zeros(8), "b": torch.zeros(4, 8)})

    def loss() -> Any:
        coded = torch_dct.dct_2d(x * weights["b"], norm="ortho")
        back = torch_dct.idct_2d(coded * weights["a"], norm="ortho")
        return (back - x).square().mean() + torch_dct.dct_3d(back).square().mean() / 100

    rows = trained(weights, loss)
    return {
        **rows,
        "layer": array(model(x)),
        "first": array(torch_dct.idct1(torch_dct.dct1(x))),
        "plain": array(torch_dct.idct_3d(torch_dct.dct_3d(x))),
    }


@program("lora-pytorch", "float32")
def adapters() -> Rows:
    from lora_pytorch import LoRA

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = torch.nn.Sequential(torch.nn.Embedding(9, 8), layer, torch.nn.Linear(8, 9))
    adapted = LoRA.from_module(fill(net), rank=2)
    words = listed(9, 3, 6)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    rows = trained(
        adapted,
        lambda: F.cross_entropy(adapted(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten()),
        optimizer=optimizer,
    )
    merged = adapted.merge_lora(inplace=False)
    return {**rows, "merged": array(merged(words)), "removed": array(net(words))}
