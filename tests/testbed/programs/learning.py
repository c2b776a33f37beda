"""Trainers, metrics, losses, optimizers, agents, graphs: the tools around models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.testbed.training import Rows, array, fill, filled, listed, program, trained


def perceptron(inputs: int = 6, outputs: int = 3) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs)
    )


@program("torchmetrics", "float32")
def classification_metrics() -> Rows:
    import torchmetrics

    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=4),
            "f1": torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"),
            "auroc": torchmetrics.AUROC(task="multiclass", num_classes=4),
            "confusion": torchmetrics.ConfusionMatrix(task="multiclass", num_classes=4),
            "calibration": torchmetrics.CalibrationError(task="multiclass", num_classes=4),
            "precision": torchmetrics.AveragePrecision(task="multiclass", num_classes=4),
        }
    )
    for batch in range(5):
        metrics.update(filled(16, 4, salt=batch).softmax(-1), listed(4, 16, salt=batch))
    return {name: array(value) for name, value in metrics.compute().items()}


@program("torchmetrics", "float32")
def other_metrics() -> Rows:
    from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
    from torchmetrics.regression import PearsonCorrCoef, R2Score, SpearmanCorrCoef
    from torchmetrics.retrieval import RetrievalMAP
    from torchmetrics.text import CharErrorRate, Perplexity

    a, b = filled(20), filled(20, salt=1)
    image, other = filled(2, 3, 16, 16).sigmoid(), filled(2, 3, 16, 16, salt=1).sigmoid()
    words = CharErrorRate()
    words.update(["the tide is low"], ["the tides are low"])
    return {
        "pearson": array(PearsonCorrCoef()(a, b)),
        "spearman": array(SpearmanCorrCoef()(a, b)),
        "r2": array(R2Score()(a, b)),
        "psnr": array(PeakSignalNoiseRatio(data_range=1.0)(image, other)),
        "ssim": array(StructuralSimilarityIndexMeasure(data_range=1.0)(image, other)),
        "map": array(RetrievalMAP()(a, listed(2, 20), indexes=listed(3, 20))),
        "perplexity": array(Perplexity()(filled(2, 5, 7), listed(7, 2, 5))),
        "characters": array(words.compute()),
    }


@program("pytorch-metric-learning")
def triplets() -> Rows:
    from pytorch_metric_learning import losses, miners

    model, x, labels = perceptron(outputs=4), filled(12, 6), listed(3, 12)
    miner, loss = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()

    def step() -> Any:
        embedded = model(x)
        return loss(embedded, labels, miner(embedded, labels))

    return trained(model, step)


@program("pytorch-metric-learning")
def margins_of_angles() -> Rows:
    from pytorch_metric_learning import losses

    model, x, labels = perceptron(outputs=4), filled(12, 6), listed(3, 12)
    model.loss = losses.ArcFaceLoss(3, 4)
    contrast = losses.NTXentLoss()
    net = model[:3]
    return trained(model, lambda: model.loss(net(x), labels) + contrast(net(x), labels))


@program("skorch", "float32")
def scikit_learn_estimator() -> Rows:
    from skorch import NeuralNetClassifier

    x = np.random.default_rng(0).standard_normal((60, 6)).astype("float32")
    y = (x[:, 0] + x[:, 1] > 0).astype("int64")
    net = NeuralNetClassifier(
        fill(perceptron(outputs=2)),
        criterion=torch.nn.CrossEntropyLoss,
        max_epochs=5,
        lr=0.1,
        batch_size=20,
        iterator_train__shuffle=False,
        train_split=None,
        verbose=0,
    )
    net.fit(x, y)
    return {"losses": np.array(net.history[:, "train_loss"]), "probabilities": net.predict_proba(x)}


@program("pytorch-lightning", "float32")
def lightning() -> Rows:
    import pytorch_lightning as pl
    from torch.utils.data import DataLoader, TensorDataset

    losses = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = fill(perceptron())

        def training_step(self, batch: Any, number: int) -> Any:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
            }

    module = Module()
    trainer = pl.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
    )
    trainer.fit(module, DataLoader(TensorDataset(filled(32, 6), listed(3, 32)), batch_size=8))
    return {"losses": np.array(losses), **{n: array(p) for n, p in module.named_parameters()}}


@program("accelerate", "float32")
def accelerated() -> Rows:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = fill(perceptron())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(filled(32, 6), listed(3, 32)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(accelerator.gather(loss.detach()).mean().item())
    return {"losses": np.array(losses), **{n: array(p) for n, p in model.named_parameters()}}


@program("pytorch-ignite", "float32")
def ignite_engine() -> Rows:
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    model = fill(perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy)
    evaluator = create_supervised_evaluator(
        model, {"accuracy": Accuracy(), "loss": Loss(F.cross_entropy)}
    )
    batches = [(filled(8, 6, salt=i), listed(3, 8, salt=i)) for i in range(4)]
    losses = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    trainer.run(batches, max_epochs=5)
    found = evaluator.run(batches).metrics
    return {"losses": np.array(losses), **{n: np.array(v) for n, v in found.items()}}


@program("lion-pytorch")
def lion() -> Rows:
    from lion_pytorch import Lion

    model, x, y = perceptron(), filled(8, 6), listed(3, 8)
    optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=1e-2)
    return trained(model, lambda: F.cross_entropy(model(x), y), optimizer=optimizer)


@program("pytorch-optimizer")
def many_optimizers() -> Rows:
    import pytorch_optimizer as po

    rows: Rows = {}
    for name in (
        "AdaBelief",
        "AdamP",
        "Lamb",
        "RAdam",
        "Ranger21",
        "MADGRAD",
        "Adan",
        "Tiger",
        "Prodigy",
        "SophiaH",
    ):
        model, x, y = perceptron(), filled(8, 6), listed(3, 8)
        given = {"num_iterations": 20} if name == "Ranger21" else {}
        optimizer = getattr(po, name)(model.parameters(), lr=1e-3, **given)

        def loss(model: Any = model, x: Any = x, y: Any = y) -> Any:
            return F.cross_entropy(model(x), y)

        if name == "SophiaH":
            continue  # draws its Hessian's directions in every step
        found = trained(model, loss, optimizer=optimizer)
        rows |= {f"{name} {row}": values for row, values in found.items()}
    return rows


@program("torch-ema")
def averages() -> Rows:
    from ema_pytorch import EMA
    from torch_ema import ExponentialMovingAverage

    model, x, y = fill(perceptron()), filled(8, 6), listed(3, 8)
    one = ExponentialMovingAverage(model.parameters(), decay=0.9)
    two = EMA(model, beta=0.9, update_after_step=2, update_every=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        one.update()
        two.update()
    with one.average_parameters():
        rows = {"averaged": array(model(x))}
    return rows | {"other": array(two(x)), "itself": array(model(x))}


@program("stable-baselines3", "float32")
def agent() -> Rows:
    import gymnasium
    from stable_baselines3 import PPO

    class Corridor(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.place = 0
            return self.seen(), {}

        def seen(self) -> Any:
            return np.sin(np.arange(4) + self.place).astype(np.float32)

        def step(self, action: Any) -> Any:
            self.place += 1
            return self.seen(), float(np.cos(self.place)), self.place == 10, False, {}

    model = PPO(
        "MlpPolicy",
        Corridor(),
        n_steps=40,
        batch_size=40,
        n_epochs=3,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [16]},
    )
    fill(model.policy)
    # Actions are drawn, and draws differ: so what is learned from is evaluated, not rolled out.
    observations = filled(40, 4).clamp(-1, 1)
    actions = listed(2, 40)
    values, log_prob, entropy = model.policy.evaluate_actions(observations, actions)
    rows = {"values": array(values), "log_prob": array(log_prob), "entropy": array(entropy)}

    def loss() -> Any:
        values, log_prob, entropy = model.policy.evaluate_actions(observations, actions)
        ratio = (log_prob - log_prob.detach()).exp()
        clipped = ratio.clamp(0.8, 1.2) * observations[:, 0]
        return (
            -torch.min(ratio * observations[:, 0], clipped).mean()
            + F.mse_loss(values.flatten(), observations[:, 1])
            - 0.01 * entropy.mean()
        )

    rows |= trained(model.policy, loss, optimizer=model.policy.optimizer)
    model.learn(80)
    return rows


@program("einops")
def rearranged() -> Rows:
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import EinMix, Rearrange

    model = torch.nn.Sequential(
        Rearrange("b (h p) (w q) -> b (h w) (p q)", p=2, q=2),
        EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=4, d=6),
    )
    x = filled(2, 8, 8)

    def loss() -> Any:
        y = model(x)
        pooled = reduce(y, "b t (g c) -> b g c", "max", g=2)
        scores = einsum(
            pooled, repeat(pooled, "b g c -> b g r c", r=2), "b g c, b h r c -> b g h r"
        )
        return rearrange(scores, "b g h r -> (b r) (g h)").square().mean()

    return trained(model, loss)


@program("torch-geometric")
def graph_networks() -> Rows:
    from torch_geometric.data import Data
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

    edges = listed(10, 2, 30)
    data = Data(x=filled(10, 6), edge_index=edges, y=listed(3, 10))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = GCNConv(6, 8), GATConv(8, 4, heads=2), SAGEConv(8, 3)

        def forward(self, data: Any) -> Any:
            x = self.one(data.x, data.edge_index).relu()
            x = self.two(x, data.edge_index).relu()
            x = self.three(x, data.edge_index)
            return x + global_mean_pool(x, torch.zeros(10, dtype=torch.long))

    model = Net()
    return trained(model, lambda: F.cross_entropy(model(data), data.y))


@program("torch")
def training_loop() -> Rows:
    """A loop with what scripts do around a model: clipping, schedules, hooks, averaging, states."""
    model = perceptron()
    seen: list[float] = []
    model[1].register_forward_hook(lambda module, given, result: seen.append(result.mean().item()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20)
    x, y = filled(8, 6), listed(3, 8)
    turn = itertools.count()

    def loss() -> Any:
        if next(turn):
            schedule.step()
        return F.cross_entropy(model(x), y, label_smoothing=0.1)

    rows = trained(model, loss, optimizer=optimizer)
    return rows | {"seen": np.array(seen)}
