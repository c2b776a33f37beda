"""Small packages of ordinary authors: loops, optimizers and schedules of their own.

One or two people wrote each of them, for a course, a paper or their own data: a range test of
learning rates, forecasts, autoencoders of sequences, survival data, tables, and the
optimizers and warm-ups of papers.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.testbed.training import Rows, array, fill, filled, listed, program, trained


def perceptron(inputs: int = 6, outputs: int = 3) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs)
    )


def states(module: Any) -> Rows:
    """Parameters and buffers of a module that its own loop trained."""
    return {
        f"state {name}": array(tensor)
        for name, tensor in module.state_dict().items()
        if tensor.dtype.is_floating_point
    }


@program("torch-lr-finder")
def range_test() -> Rows:
    from torch_lr_finder import LRFinder

    model = fill(perceptron())
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(filled(24, 6), listed(3, 24)), batch_size=8
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-2)
    finder = LRFinder(model, optimizer, torch.nn.CrossEntropyLoss(), device="cpu")
    rows: Rows = {}
    for mode in ("exp", "linear"):
        finder.range_test(
            batches, val_loader=batches, end_lr=1, num_iter=12, step_mode=mode, accumulation_steps=2
        )
        rows[f"{mode} rates"] = np.array(finder.history["lr"])
        rows[f"{mode} losses"] = np.array(finder.history["loss"])
        rows.update({f"{mode} {name}": value for name, value in states(model).items()})
        finder.reset()
    return {**rows, **states(model)}


@program("nbeats-pytorch", "float32")
def forecasts() -> Rows:
    from nbeats_pytorch.model import NBeatsNet

    random.seed(0)
    model = NBeatsNet(
        stack_types=(NBeatsNet.TREND_BLOCK, NBeatsNet.SEASONALITY_BLOCK, NBeatsNet.GENERIC_BLOCK),
        nb_blocks_per_stack=2,
        thetas_dim=(3, 4, 4),
        forecast_length=4,
        backcast_length=8,
        hidden_layer_units=16,
    )
    fill(model)
    model.compile("mae", torch.optim.Adam(model.parameters(), lr=1e-3))
    series = np.sin(np.arange(60) / 3) + np.random.default_rng(0).normal(0, 0.1, 60)
    windows = np.stack([series[i : i + 12] for i in range(48)])
    x, y = windows[:, :8], windows[:, 8:]
    model.fit(x[:32], y[:32], validation_data=(x[32:], y[32:]), epochs=4, batch_size=8)
    rows = {"forecast": model.predict(x[32:]), "backcast": model.predict(x[32:], True)}
    return {**rows, **states(model)}


@program("sequitur", "float32")
def autoencoder_of_sequences() -> Rows:
    from sequitur import quick_train
    from sequitur.models import LSTM_AE as PackageLSTM

    class LSTM_AE(PackageLSTM):
        """The package's model, whose name its loop reads, with weights that are alike."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            fill(self)

    sequences = [filled(5 + i % 3, 4, salt=i) for i in range(6)]
    encoder, decoder, encodings, losses = quick_train(
        LSTM_AE, sequences, encoding_dim=3, h_dims=[6], epochs=6, lr=1e-2
    )
    rows = {f"encoding {i}": array(code) for i, code in enumerate(encodings)}
    rows["losses"] = np.array(losses)
    rows["decoded"] = array(decoder(encodings[0], 5))
    return {**rows, **states(encoder)}


@program("torchtuples", "float32")
def survival_style_training() -> Rows:
    import torchtuples

    rows: Rows = {}
    x, y = filled(32, 6), filled(32, 1, salt=1)
    for name in ("AdamW", "AdamWR", "SGD"):
        net = fill(torchtuples.practical.MLPVanilla(6, [8, 8], 1, batch_norm=True, dropout=None))
        optimizer = getattr(torchtuples.optim, name)(lr=1e-2)
        model = torchtuples.Model(net, torch.nn.MSELoss(), optimizer)
        log = model.fit(
            x,
            y,
            batch_size=8,
            epochs=5,
            shuffle=False,
            verbose=False,
            val_data=(x[:8], y[:8]),
            callbacks=[torchtuples.callbacks.EarlyStopping(patience=3)],
        )
        rows[f"{name} losses"] = log.to_pandas().to_numpy()
        rows[f"{name} predictions"] = array(model.predict(x))
        rows.update({f"{name} {key}": value for key, value in states(net).items()})
    return rows


@program("adabelief-pytorch")
def optimizer_of_a_paper() -> Rows:
    from adabelief_pytorch import AdaBelief

    model, x, y = perceptron(), filled(12, 6), listed(3, 12)
    optimizer = AdaBelief(
        model.parameters(), lr=1e-2, weight_decay=1e-2, amsgrad=True, print_change_log=False
    )
    return trained(model, lambda: F.cross_entropy(model(x), y), optimizer=optimizer)


@program("ranger21", "float32")
def optimizer_of_many_papers() -> Rows:
    from ranger21 import Ranger21

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    x, y = filled(8, 1, 6, 6), listed(3, 8)
    optimizer = Ranger21(model.parameters(), lr=1e-2, num_epochs=5, num_batches_per_epoch=4)
    rows = trained(model, lambda: F.cross_entropy(model(x), y), optimizer=optimizer)
    return {**rows, "rates": np.array([float(rate) for rate in optimizer.tracking_lr])}


@program("pytorch-warmup")
def warmup_and_decay() -> Rows:
    import pytorch_warmup

    model, x, y = fill(perceptron()), filled(12, 6), listed(3, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 14])
    warmups = (
        pytorch_warmup.UntunedLinearWarmup(optimizer),
        pytorch_warmup.ExponentialWarmup(optimizer, warmup_period=5),
        pytorch_warmup.RAdamWarmup(optimizer),
    )
    losses, rates = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        with warmups[0].dampening(), warmups[1].dampening(), warmups[2].dampening():
            decay.step()
            steps.step()
    return {"losses": np.array(losses), "rates": np.array(rates), **states(model)}


@program("pytorch-tabnet", "float32")
def classifier_of_tables() -> Rows:
    from pytorch_tabnet.tab_model import TabNetClassifier

    class Filled(TabNetClassifier):
        """The package's classifier, whose loop makes the network, with weights that are alike."""

        def _set_network(self) -> None:
            super()._set_network()
            fill(self.network)

    x, y = filled(64, 5).numpy(), listed(3, 64).numpy()
    model = Filled(
        n_d=4,
        n_a=4,
        n_steps=2,
        verbose=0,
        device_name="cpu",
        scheduler_fn=torch.optim.lr_scheduler.StepLR,
        scheduler_params={"step_size": 2, "gamma": 0.5},
    )
    model.fit(
        x,
        y,
        eval_set=[(x[:16], y[:16])],
        eval_metric=["logloss"],
        max_epochs=6,
        batch_size=64,
        virtual_batch_size=64,
    )
    masks, _ = model.explain(x[:8])
    return {
        "losses": np.array(model.history["loss"]),
        "rates": np.array(model.history["lr"]),
        "predictions": model.predict_proba(x[:8]),
        "masks": masks,
        "importances": model.feature_importances_,
        **states(model.network),
    }
