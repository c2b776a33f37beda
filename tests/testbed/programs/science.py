"""Differential equations, Gaussian processes, flows, manifolds: programs that lean on autograd."""

from __future__ import annotations

from typing import Any

import torch

from tests.testbed.training import Rows, array, filled, program, trained


class Field(torch.nn.Module):
    """A small vector field, autonomous."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(width, 16), torch.nn.Tanh(), torch.nn.Linear(16, width)
        )

    def forward(self, t: Any, y: Any) -> Any:
        return self.net(y)


@program("torchdiffeq")
def adaptive_solver() -> Rows:
    from torchdiffeq import odeint

    model, start, times = Field(), filled(5, 2), torch.linspace(0.0, 1.0, 6)
    return trained(model, lambda: odeint(model, start, times, method="dopri5").square().mean())


@program("torchdiffeq")
def adjoint() -> Rows:
    from torchdiffeq import odeint_adjoint

    model, start, times = Field(), filled(5, 2), torch.linspace(0.0, 1.0, 4)
    return trained(
        model,
        lambda: odeint_adjoint(model, start, times, rtol=1e-8, atol=1e-8).square().mean(),
        steps=5,
    )


@program("torchdiffeq")
def events() -> Rows:
    from torchdiffeq import odeint_event

    gravity = torch.nn.Parameter(torch.tensor([9.8]))
    start = (torch.tensor([10.0]), torch.tensor([0.0]))
    t, state = odeint_event(
        lambda t, y: (y[1], -gravity),
        start,
        torch.tensor(0.0),
        event_fn=lambda t, y: y[0],
        atol=1e-9,
        rtol=1e-9,
        method="dopri5",
    )
    t.sum().backward()
    return {
        "time": array(t),
        "velocity": array(state[1]),
        "gradient of gravity": array(gravity.grad),
    }


@program("torchsde")
def stochastic() -> Rows:
    import torchsde

    class Sde(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def f(self, t: Any, y: Any) -> Any:
            return self.drift(y).tanh()

        def g(self, t: Any, y: Any) -> Any:
            return self.spread(y).sigmoid()

    class Path(torchsde.BaseBrownian):
        def __call__(
            self, ta: Any, tb: Any = None, return_U: bool = False, return_A: bool = False
        ) -> Any:
            return torch.sin(7.0 * filled(4, 2) + 30.0 * (tb - ta)) * 0.1

        def __repr__(self) -> str:
            return "Path"

        dtype = property(lambda self: torch.get_default_dtype())
        device = property(lambda self: torch.device("cpu"))
        shape = property(lambda self: (4, 2))
        levy_area_approximation = "none"

    model, start, times = Sde(), filled(4, 2), torch.linspace(0.0, 1.0, 4)
    return trained(
        model,
        lambda: (
            torchsde.sdeint(model, start, times, bm=Path(), dt=0.1, method="euler").square().mean()
        ),
    )


@program("torchcde")
def controlled() -> Rows:
    import torchcde

    class Controlled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.readout = torch.nn.Linear(4, 12), torch.nn.Linear(4, 1)

        def forward(self, t: Any, z: Any) -> Any:
            return self.linear(z).tanh().view(*z.shape[:-1], 4, 3)

    model = Controlled()
    path = torchcde.CubicSpline(
        torchcde.hermite_cubic_coefficients_with_backward_differences(filled(3, 8, 3))
    )
    start = filled(3, 4)

    def loss() -> Any:
        z = torchcde.cdeint(
            X=path, func=model, z0=start, t=path.interval, method="rk4", adjoint=False
        )
        return model.readout(z[:, -1]).square().mean()

    return trained(model, loss, steps=10)


@program("gpytorch")
def exact_gp() -> Rows:
    import gpytorch

    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x) + 0.1 * filled(20)

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Regression(likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    rows = trained(model, lambda: -marginal(model(x), y), optimizer=optimizer, fresh=False)
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        prediction = likelihood(model(torch.linspace(0, 1, 7)))
    return rows | {"mean": array(prediction.mean), "variance": array(prediction.variance)}


@program("gpytorch")
def variational_gp() -> Rows:
    import gpytorch

    x = torch.linspace(0, 1, 24)
    y = (torch.sin(6 * x) > 0).to(torch.get_default_dtype())

    class Classifier(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.linspace(0, 1, 6).unsqueeze(-1)
            distribution = gpytorch.variational.CholeskyVariationalDistribution(6)
            super().__init__(
                gpytorch.variational.VariationalStrategy(
                    self, points, distribution, learn_inducing_locations=True
                )
            )
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = Classifier(), gpytorch.likelihoods.BernoulliLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=24)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return trained(model, lambda: -bound(model(x), y), optimizer=optimizer, fresh=False)


@program("botorch")
def acquisition() -> Rows:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = filled(10, 2).sigmoid()
    y = (x - 0.3).square().sum(-1, keepdim=True)
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    points = filled(5, 1, 2, salt=1).sigmoid().requires_grad_()
    value = LogExpectedImprovement(model, best_f=y.max())(points)
    value.sum().backward()
    return {"value": array(value), "gradient of points": array(points.grad)}


@program("nflows")
def coupling_flow() -> Rows:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    model = Flow(
        CompositeTransform(
            [
                ReversePermutation(features=2),
                MaskedAffineAutoregressiveTransform(features=2, hidden_features=8),
            ]
            * 2
        ),
        StandardNormal(shape=[2]),
    )
    x = filled(16, 2)
    model.to(torch.get_default_dtype())
    return trained(model, lambda: -model.log_prob(inputs=x).mean())


@program("normflows")
def real_nvp() -> Rows:
    import normflows as nf

    flows = []
    for _ in range(3):
        flows += [
            nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 16, 2], init_zeros=True)),
            nf.flows.Permute(2, mode="swap"),
        ]
    model = nf.NormalizingFlow(nf.distributions.base.DiagGaussian(2), flows)
    x = filled(16, 2)
    return trained(model, lambda: model.forward_kld(x))


@program("zuko")
def neural_spline_flow() -> Rows:
    import zuko

    model = zuko.flows.NSF(features=2, context=3, transforms=2, hidden_features=(16,))
    x, context = filled(8, 2), filled(8, 3)
    return trained(model, lambda: -model(context).log_prob(x).mean())


@program("pyro-ppl")
def variational_inference() -> Rows:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    data = filled(12) + 1.0
    pyro.clear_param_store()

    def model() -> None:
        center = pyro.sample("center", dist.Normal(torch.tensor(0.0), torch.tensor(10.0)))
        with pyro.plate("data", 12):
            pyro.sample("x", dist.Normal(center, torch.tensor(1.0)), obs=data)

    def guide() -> None:
        center = pyro.param("where", torch.tensor(0.0))
        spread = pyro.param("spread", torch.tensor(1.0), constraint=dist.constraints.positive)
        pyro.sample("center", dist.Delta(center + 0.0 * spread))

    inference = SVI(model, guide, Adam({"lr": 0.05}), loss=Trace_ELBO())
    losses = [inference.step() for _ in range(20)]
    return {"losses": torch.tensor(losses).numpy(), "where": array(pyro.param("where"))}


@program("geoopt")
def hyperbolic() -> Rows:
    import geoopt

    ball = geoopt.PoincareBall()

    class Points(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = geoopt.ManifoldParameter(0.1 * filled(6, 2), manifold=ball)

    model, target = Points(), 0.1 * filled(6, 2, salt=1)
    optimizer = geoopt.optim.RiemannianAdam(model.parameters(), lr=1e-2)
    return trained(
        model,
        lambda: ball.dist(model.points, target).square().sum(),
        optimizer=optimizer,
        fresh=False,
    )


@program("entmax")
def sparse_attention() -> Rows:
    from entmax import Entmax15Loss, entmax15, sparsemax

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            return self.out(x * entmax15(self.score(x), dim=-1) + sparsemax(self.score(x), dim=-1))

    model, x = Classifier(), filled(6, 8)
    loss = Entmax15Loss()
    labels = torch.arange(6) % 5
    return trained(model, lambda: loss(model(x), labels))


@program("snntorch", "float32")
def spiking() -> Rows:
    import snntorch
    from snntorch import surrogate

    class Spiking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
            self.leak = snntorch.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid())

        def forward(self, x: Any) -> Any:
            potential, spikes = self.leak.init_leaky(), []
            for step in range(x.shape[0]):
                spike, potential = self.leak(self.one(x[step]), potential)
                spikes.append(self.two(spike) + potential.mean())
            return torch.stack(spikes)

    model, x = Spiking(), 2 * filled(5, 4, 6)
    return trained(model, lambda: model(x).square().mean())


@program("linear-operator")
def structured_solve() -> Rows:
    from linear_operator.operators import (
        DiagLinearOperator,
        LowRankRootLinearOperator,
        ToeplitzLinearOperator,
    )

    root = filled(12, 3).requires_grad_()
    operator = LowRankRootLinearOperator(root) + DiagLinearOperator(torch.linspace(1.0, 2.0, 12))
    solved = operator.solve(filled(12, 2))
    toeplitz = ToeplitzLinearOperator(torch.linspace(1.0, 0.1, 12)) @ filled(12, 1)
    (solved.square().sum() + operator.logdet() + toeplitz.sum()).backward()
    return {
        "solved": array(solved),
        "toeplitz": array(toeplitz),
        "gradient of root": array(root.grad),
    }
