"""DP-SGD: local training in which every sample's gradient is clipped and every step is noised.

Opacus makes the gradients of single samples and clips them. Batches are Poisson samples, and batches and noise come from the operating
system's secret generator: the keyed shuffles of the study would give no amplification, since the server can draw them, too.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Floats
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.parameters import read, torch_seeded, write
from coterie.core.rules import plain_optimizer
from coterie.deploy.accountant import Charge
from coterie.deploy.mechanisms import DpSgd
from coterie.deploy.secret import poisson_batch, secret_normals, secret_words
from coterie.engines.batches import count_steps
from coterie.engines.device_faults import device_faults_told, fault_of_device
from coterie.engines.workspace import Workspace
from coterie.engines.world import World


@dataclass(frozen=True)
class PoissonSteps:
    """How one client trains: so many steps, each on a batch that every sample enters with probability `rate`."""

    samples: int
    rate: float
    steps: int

    @classmethod
    def of(cls, ask: Train, row: int, samples: int) -> "PoissonSteps":
        """As many steps as ordinary training takes, on batches that are as large on average."""
        epochs = ask.local.epochs if ask.epochs is None else int(ask.epochs[row])
        batch = min(ask.local.batch_size or samples, samples)
        steps = count_steps(samples, batch, epochs, ask.local.max_steps)
        if steps < 1 or not 0 < batch <= samples:
            raise ValueError(f"a training of {steps} steps on batches of {batch}")
        return cls(samples, batch / samples, steps)


class PrivateTrainer:
    """Carries out Train for the clients of a world."""

    def __init__(self, world: World, privacy: DpSgd, device: str = "cpu") -> None:
        self.world, self.privacy = world, privacy
        self._space = Workspace(world, torch.device(device), torch.float32)
        self._wrapped = per_sample(self._space)

    def steps(self, ask: Train) -> list[PoissonSteps]:
        """For each client of the ask, how it will train."""
        sizes = self.world.federation.train.sizes
        return [PoissonSteps.of(ask, row, int(sizes[client])) for row, client in enumerate(ask.clients)]

    def costs(self, ask: Train) -> list[Charge]:
        """For each client of the ask, what the training costs."""
        return [self.cost(plan) for plan in self.steps(ask)]

    def cost(self, plan: PoissonSteps) -> Charge:
        """What a training costs: its sampler's own rate and steps."""
        return Charge("dp-sgd", self.privacy.noise_multiplier, plan.rate, plan.steps)

    @device_faults_told()
    def train(self, ask: Train, plans: Sequence[PoissonSteps] | None = None) -> Trained:
        """Train every client of the ask, exactly as planned: these plans are what was charged (see `cost`)."""
        plans = self.steps(ask) if plans is None else plans
        if len(plans) != len(ask.clients):
            raise ValueError("a training needs one plan for each client")
        vectors = np.empty((len(plans), ask.models.shape[1]), dtype=np.float32)
        with torch_seeded(int(secret_words(1)[0])):  # dropout
            for row, plan in enumerate(plans):
                vectors[row] = self._train(ask, row, plan)
        sizes = self.world.federation.train.sizes[ask.clients]
        return Trained(ask.clients, vectors, sizes, np.array([plan.steps for plan in plans], dtype=np.int64))

    def _train(self, ask: Train, row: int, plan: PoissonSteps) -> Floats:
        from opacus.optimizers import DPOptimizer

        space, own = self._space, self.world.federation.train[int(ask.clients[row])]
        write(space.module, space.vector(ask.models[ask.start[row]]))
        space.module.train()
        weights = [w for w in space.module.parameters() if w.requires_grad]
        optimizer = plain_optimizer(list(weights), ask.local)
        clipping = DPOptimizer(
            optimizer,
            noise_multiplier=self.privacy.noise_multiplier,
            max_grad_norm=self.privacy.max_grad_norm,
            expected_batch_size=plan.rate * plan.samples,
        )
        for _ in range(plan.steps):
            clipping.zero_grad()
            sample_gradients(space, weights, own[poisson_batch(plan.samples, plan.rate)])
            clipping.clip_and_accumulate()
            for j, w in enumerate(weights):
                w.grad = (_summed(w) + self._noise(w)) / (plan.rate * plan.samples)
                w.grad += self._terms(ask, row, j, w)
            optimizer.step()
        clipping.zero_grad(set_to_none=True)
        return read(space.module)

    def _noise(self, weight: Tensor) -> Tensor:
        noise = secret_normals(tuple(weight.shape), self.privacy.noise_multiplier * self.privacy.max_grad_norm)
        return torch.as_tensor(noise, dtype=weight.dtype, device=weight.device)

    def _terms(self, ask: Train, row: int, j: int, weight: Tensor) -> Tensor:
        """The proximal and the linear term: they know no sample, and are added after the noise."""
        part = self.world.model.layout.weights[j]
        anchor = ask.models[ask.start[row]] if ask.anchors is None else ask.anchors[row]
        mu = ask.local.mu if ask.mus is None else float(ask.mus[row])
        sum_ = mu * (weight.detach() - self._piece(anchor, part.begin, weight))
        return sum_ if ask.linear is None else sum_ + self._piece(ask.linear[row], part.begin, weight)

    def _piece(self, vector: Floats, begin: int, weight: Tensor) -> Tensor:
        return self._space.vector(vector[begin : begin + weight.numel()]).view(weight.shape)


def sample_gradients(space: Workspace, weights: list[nn.Parameter], rows: Any) -> None:
    """Leave the gradient of each of these samples in the weights' `grad_sample`.

    An empty batch has none, and still takes a step: of noise. A sample whose gradient is not finite counts as zero, for it cannot be cut.
    """
    if len(rows) == 0:
        for w in weights:
            w.grad_sample = w.new_zeros((0, *w.shape))  # type: ignore[attr-defined]
        return
    with quiet_hooks():
        torch.autograd.backward(space.losses(rows).sum())
    made: list[Tensor] = [w.grad_sample for w in weights]  # type: ignore[attr-defined]
    good = torch.stack([g.flatten(1).isfinite().all(dim=1) for g in made]).all(dim=0)
    for w, g in zip(weights, made, strict=True):
        w.grad_sample = torch.where(good.view(-1, *[1] * w.dim()), g, torch.zeros_like(g))  # type: ignore[attr-defined]


def per_sample(space: Workspace) -> Any:
    """The workspace's module within Opacus' hooks; a module that has no gradients of single samples is refused."""
    try:
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator
    except ImportError:
        raise UserError("DP-SGD needs Opacus, which is not installed: pip install 'coterie[deploy]'.") from None
    space.module.train()
    if ModuleValidator.validate(space.module, strict=False):
        raise UserError("The model has a layer that mixes samples (batch norm, say), and cannot be trained under dp-sgd: use group norm.")
    try:
        wrapped = GradSampleModule(space.module, batch_first=True, loss_reduction="sum", strict=False)
        with torch_seeded(0):
            agrees = _agrees(space)
    except Exception as error:
        if (told := fault_of_device(error)) is not None:
            raise told from error
        kind = type(error).__name__
        raise UserError(f"The model cannot be trained under dp-sgd: Opacus finds no gradients of its samples ({kind}).") from error
    if not agrees:
        raise UserError("The model cannot be trained under dp-sgd: its samples' gradients are not what each sample alone gives.")
    return wrapped


def _agrees(space: Workspace, samples: int = 4) -> bool:
    """Whether Opacus' gradients are those of each sample by itself, and training changes no buffer behind the noise's back.

    Tried once, on noise in the shape of the data, with dropout off.
    """
    module, x = space.module, space.x
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    shape = (samples, *x.shape[1:])
    drawn = torch.randn(shape, dtype=x.dtype) if x.is_floating_point() else torch.randint(0, max(1, int(x.max())), shape, dtype=x.dtype)
    drawn = drawn.to(space.device)
    weights, before = [w for w in module.parameters() if w.requires_grad], [b.clone() for b in module.buffers()]
    labels = torch.zeros(samples, dtype=space.y.dtype, device=space.device)
    together = _gradients_of(space, weights, drawn, labels)
    alone = [_gradients_of(space, weights, drawn[i : i + 1], labels[i : i + 1]) for i in range(samples)]
    same = all(torch.allclose(g[i : i + 1], alone[i][j], rtol=1e-3, atol=1e-5) for j, g in enumerate(together) for i in range(samples))
    return same and all(torch.equal(a, b) for a, b in zip(before, module.buffers(), strict=True))


def _gradients_of(space: Workspace, weights: list[nn.Parameter], x: Tensor, y: Tensor) -> list[Tensor]:
    for w in weights:
        w.grad = w.grad_sample = None  # type: ignore[attr-defined]
    with quiet_hooks():
        torch.autograd.backward(space.loss(space.module(x), y).sum())
    if len(x) == 1 and any(not torch.allclose(w.grad, w.grad_sample[0], rtol=1e-3, atol=1e-5) for w in weights):  # type: ignore
        raise ValueError("the gradient of one sample is not the gradient")
    made = [w.grad_sample.clone() for w in weights]  # type: ignore[attr-defined]
    for w in weights:
        w.grad = w.grad_sample = None  # type: ignore[attr-defined]
    return made


@contextmanager
def quiet_hooks() -> Iterator[None]:
    """Torch warns that a hook fires at a layer whose inputs need no gradient; Opacus does not use those."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def _summed(weight: nn.Parameter) -> Tensor:
    """The sum of clipped gradients, where Opacus leaves it."""
    summed: Tensor = weight.summed_grad  # type: ignore[attr-defined]
    return summed.view_as(weight)
