"""Differential privacy at a site: secure random numbers, clipping and noise on replies, and DP-SGD.

Random numbers come from the operating system's secure generator. Under clip+noise everything that a client sends is clipped and noised;
under dp-sgd every step of local training is.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Doubles, Floats, Ints, Words, find_positions
from coterie.core.asks import Ask, Errors, Evaluated, Gradient, Gradients, LossTable, Reply, Train, Trained
from coterie.core.descriptions import Described
from coterie.core.layout import Layout
from coterie.core.local import MODEL, make_optimizer
from coterie.core.model import read_vector, use_torch_seed, write_vector
from coterie.core.rng import to_uniforms
from coterie.core.vectors import clip_rows
from coterie.deploy.site.disclosure import HUNDRED, make_one_class
from coterie.deploy.site.ledger import Charge
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy
from coterie.engines.device import find_device_error, raise_device_errors
from coterie.engines.sampling import count_steps
from coterie.engines.sketching import get_sketch
from coterie.engines.workspace import Workspace
from coterie.engines.world import World


def draw_secure_words(n: int) -> Words:
    """(n,) 64-bit words."""
    return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)


def draw_secure_normals(shape: tuple[int, ...], deviation: float) -> Doubles:
    """Gaussian noise (Box and Muller's transform)."""
    n = int(np.prod(shape))
    half = (n + 1) // 2
    radius = np.sqrt(-2.0 * np.log1p(-to_uniforms(draw_secure_words(half))))  # of 1 - u in (0, 1]
    angle = 2.0 * np.pi * to_uniforms(draw_secure_words(half))
    pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return np.asarray(deviation * pairs[:n].reshape(shape), dtype=np.float64)


def draw_poisson_batch(samples: int, rate: float) -> Ints:
    """The numbers of the samples in a batch that each enters by itself, with probability `rate`: what the accountant assumes."""
    return np.flatnonzero(to_uniforms(draw_secure_words(samples)) < rate).astype(np.int64)


MOMENTS = ("running_mean", "running_var")  # batch norm's; no other buffer leaves under noise


def choose_mechanism(ask: Ask[Any], privacy: NoPrivacy | ClipNoise | DpSgd) -> NoPrivacy | ClipNoise | DpSgd:
    """The mechanism of an answer: the policy's; where it has none, the clipping and noise that a sketch was asked with."""
    sketch = get_sketch(ask)
    if not isinstance(privacy, NoPrivacy) or sketch is None or sketch.clip is None or not sketch.noise:
        return privacy
    return ClipNoise(mechanism="clip+noise", clip=sketch.clip, noise=sketch.noise)


def strip_noise(ask: Ask[Any]) -> Ask[Any]:
    """The ask as the site's engine gets it: it would clip and noise by keys, which the server knows."""
    sketch = get_sketch(ask)
    if sketch is None or not isinstance(ask, (Train, Gradient)):
        return ask
    return replace(ask, sketch=replace(sketch, clip=None, noise=0.0))


def count_releases(ask: Ask[Any]) -> int:
    """How many clipped and noised vectors an answer holds for each client."""
    if not isinstance(ask, Train):
        return 1
    shapes = ask.row_shapes()
    return 1 + len(_further(ask)) + (shapes["losses"] != (0,)) + (shapes["summary"] != (0,))


def privatise_reply(ask: Ask[Any], reply: Reply, privacy: ClipNoise, layout: Layout, limit: float = 1.0, classes: int = 2) -> Reply:
    """The reply as it may leave; losses are of samples whose own is at most `limit`. Counts of samples and steps are withheld elsewhere."""
    if get_sketch(ask) is not None and isinstance(reply, (Trained, Gradients)):
        cut = clip_rows(reply.vectors.astype(np.float64), privacy.clip)
        return replace(reply, vectors=(cut + draw_secure_normals(cut.shape, privacy.noise * privacy.clip)).astype(np.float32))
    if isinstance(ask, Train) and isinstance(reply, Trained):
        rows = find_positions(ask.clients, reply.clients)  # a client may be silent
        received = ask.models[ask.start[rows]]
        vectors = _add_noise(reply.vectors, received, privacy, layout)
        more = reply.more.copy()
        for place, loop in enumerate(_further(ask)):
            more[:, place] = _add_noise(reply.more[:, place], ask.extra[loop][rows] if loop in ask.extra else received, privacy, layout)
        # losses and means of numbers in [0, 1] are bounded, and one release each
        losses = limit * _add_bounded_noise(reply.losses / limit, privacy.multiplier)
        return replace(reply, vectors=vectors, more=more, losses=losses, summary=_add_bounded_noise(reply.summary, privacy.multiplier))
    if isinstance(ask, Gradient) and isinstance(reply, Gradients):
        return _add_gradient_noise(reply, privacy, layout)
    if isinstance(reply, Described):  # overall alone; one clip bounds both moments
        n, k = len(reply), reply.means[0].size if len(reply) else 0
        joined = clip_rows(np.concatenate([reply.means.reshape(n, k), reply.deviations.reshape(n, k)], axis=1), privacy.clip)
        joined = joined + draw_secure_normals(joined.shape, privacy.noise * privacy.clip)
        shape = reply.means.shape
        return replace(reply, means=joined[:, :k].reshape(shape), deviations=np.maximum(joined[:, k:], 0.0).reshape(shape))
    if isinstance(reply, LossTable):
        return replace(reply, losses=limit * _add_bounded_noise(reply.losses / limit, privacy.multiplier))
    if isinstance(reply, Errors):
        worst = max(classes - 1, 1)  # of class numbers
        k = reply.labels.shape[1]
        both = _add_bounded_noise(np.column_stack([reply.labels / worst, reply.probabilities]), privacy.multiplier)
        return replace(reply, labels=worst * both[:, :k], probabilities=both[:, k:])
    if isinstance(reply, Evaluated):
        totals = np.maximum(reply.actual.sum(axis=1), 1)
        even = np.where(np.isfinite(reply.auroc), reply.auroc, 0.5)  # that it is undefined shows that a class is missing
        shares = _add_bounded_noise(np.column_stack([reply.hits.sum(axis=1) / totals, reply.loss / limit, even]), privacy.multiplier)
        noised = make_one_class(reply, np.rint(HUNDRED * shares[:, 0]), HUNDRED)
        held = reply.actual.sum(axis=1) > 0
        auroc = np.where(held & (classes == 2), shares[:, 2], np.nan)
        return replace(noised, loss=np.where(held, limit * shares[:, 1], np.nan), auroc=auroc)
    raise TypeError(f"no noise is known for a {type(reply).__name__}")


def add_test_noise(reply: Evaluated, noise: float, limit: float) -> Evaluated:
    """An evaluation that hides each sample: noise on the number of right answers and on the sum of losses.

    One sample changes the first by one, the second by `limit`: both together by sqrt(2) in units of these.
    """
    totals = reply.actual.sum(axis=1)
    sums = np.column_stack([reply.hits.sum(axis=1), np.nan_to_num(reply.loss) * totals / limit]).astype(np.float64)
    sums += draw_secure_normals(sums.shape, noise * np.sqrt(2))
    noised = make_one_class(reply, np.rint(np.clip(sums[:, 0], 0, totals)), totals)
    loss = np.where(totals > 0, limit * np.clip(sums[:, 1] / np.maximum(totals, 1), 0.0, 1.0), np.nan)
    return replace(noised, loss=loss, auroc=np.full(len(reply), np.nan))


def _add_bounded_noise(shares: Doubles, multiplier: float) -> Doubles:
    """(n, k) numbers in [0, 1] with noise of `multiplier` times how far two rows can be apart; what is no number counts as 1."""
    cut = np.clip(np.nan_to_num(shares, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    return np.asarray(np.clip(cut + draw_secure_normals(cut.shape, multiplier * np.sqrt(max(cut.shape[1], 1))), 0.0, 1.0))


def _add_noise(vectors: Floats, received: Floats, privacy: ClipNoise, layout: Layout) -> Floats:
    """Models whose difference to the ones received is clipped and noised; what the data cannot have changed stays as received."""
    learned = _find_learned(layout)
    base = received[:, learned].astype(np.float64)
    changes = clip_rows(vectors[:, learned].astype(np.float64) - base, privacy.clip)
    made = received.astype(np.float64)
    made[:, learned] = base + changes + draw_secure_normals(changes.shape, privacy.noise * privacy.clip)
    for part in layout.slices:
        if part.name.endswith(MOMENTS[1]):
            made[:, part.begin : part.end] = np.maximum(made[:, part.begin : part.end], 0.0)  # a variance; noise may have made it negative
    return made.astype(np.float32)


def _add_gradient_noise(reply: Gradients, privacy: ClipNoise, layout: Layout) -> Gradients:
    """The loss is one more coordinate of the gradient, so that one clip bounds all that leaves."""
    joined = np.column_stack([reply.vectors[:, layout.compared].astype(np.float64), reply.losses])
    joined = clip_rows(joined, privacy.clip)
    joined += draw_secure_normals(joined.shape, privacy.noise * privacy.clip)
    vectors = np.zeros_like(reply.vectors)
    vectors[:, layout.compared] = joined[:, :-1]
    return replace(reply, vectors=vectors, losses=joined[:, -1])


def _find_learned(layout: Layout) -> Bools:
    """(d,) trained weights, and the moments of batch norm: what training changes and the server needs."""
    mask = layout.compared.copy()
    for part in layout.slices:
        if part.kind == "statistic" and part.name.endswith(MOMENTS):
            mask[part.begin : part.end] = True
    return mask


def _further(ask: Train) -> list[str]:
    return [loop for loop in ask.local.rule.loops if loop != MODEL] if ask.local.rule is not None else []


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
    """Executes Train for the clients of a world."""

    def __init__(self, world: World, privacy: DpSgd, device: str = "cpu") -> None:
        self.world, self.privacy = world, privacy
        self._space = Workspace(world, torch.device(device), torch.float32)
        self._wrapped = wrap_per_sample(self._space)

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

    @raise_device_errors()
    def train(self, ask: Train, plans: Sequence[PoissonSteps] | None = None) -> Trained:
        """Train every client of the ask, exactly as planned: these plans are what was charged (see `cost`)."""
        plans = self.steps(ask) if plans is None else plans
        if len(plans) != len(ask.clients):
            raise ValueError("a training needs one plan for each client")
        vectors = np.empty((len(plans), ask.models.shape[1]), dtype=np.float32)
        with use_torch_seed(int(draw_secure_words(1)[0])):  # dropout
            for row, plan in enumerate(plans):
                vectors[row] = self._train(ask, row, plan)
        sizes = self.world.federation.train.sizes[ask.clients]
        return Trained(ask.clients, vectors, sizes, np.array([plan.steps for plan in plans], dtype=np.int64))

    def _train(self, ask: Train, row: int, plan: PoissonSteps) -> Floats:
        from opacus.optimizers import DPOptimizer

        space, own = self._space, self.world.federation.train[int(ask.clients[row])]
        write_vector(space.module, space.to_tensor(ask.models[ask.start[row]]))
        space.module.train()
        weights = [w for w in space.module.parameters() if w.requires_grad]
        optimizer = make_optimizer(list(weights), ask.local)
        clipping = DPOptimizer(
            optimizer,
            noise_multiplier=self.privacy.noise_multiplier,
            max_grad_norm=self.privacy.max_grad_norm,
            expected_batch_size=plan.rate * plan.samples,
        )
        for _ in range(plan.steps):
            clipping.zero_grad()
            compute_sample_gradients(space, weights, own[draw_poisson_batch(plan.samples, plan.rate)])
            clipping.clip_and_accumulate()
            for j, w in enumerate(weights):
                summed: Tensor = w.summed_grad  # type: ignore[attr-defined]  # the sum of clipped gradients, by Opacus
                w.grad = (summed.view_as(w) + self._noise(w)) / (plan.rate * plan.samples)
                w.grad += self._terms(ask, row, j, w)
            optimizer.step()
        clipping.zero_grad(set_to_none=True)
        return read_vector(space.module)

    def _noise(self, weight: Tensor) -> Tensor:
        noise = draw_secure_normals(tuple(weight.shape), self.privacy.noise_multiplier * self.privacy.max_grad_norm)
        return torch.as_tensor(noise, dtype=weight.dtype, device=weight.device)

    def _terms(self, ask: Train, row: int, j: int, weight: Tensor) -> Tensor:
        """The proximal and the linear term: they know no sample, and are added after the noise."""
        part = self.world.model.layout.weights[j]
        anchor = ask.models[ask.start[row]] if ask.anchors is None else ask.anchors[row]
        mu = ask.local.mu if ask.mus is None else float(ask.mus[row])
        sum_ = mu * (weight.detach() - self._piece(anchor, part.begin, weight))
        return sum_ if ask.linear is None else sum_ + self._piece(ask.linear[row], part.begin, weight)

    def _piece(self, vector: Floats, begin: int, weight: Tensor) -> Tensor:
        return self._space.to_tensor(vector[begin : begin + weight.numel()]).view(weight.shape)


def compute_sample_gradients(space: Workspace, weights: list[nn.Parameter], rows: Any) -> None:
    """Leave the gradient of each of these samples in the weights' `grad_sample`.

    An empty batch has none, and still takes a step: of noise. A sample whose gradient is not finite counts as zero, for it cannot be cut.
    """
    if len(rows) == 0:
        for w in weights:
            w.grad_sample = w.new_zeros((0, *w.shape))  # type: ignore[attr-defined]
        return
    with silence_hook_warnings():
        torch.autograd.backward(space.losses(rows).sum())
    made: list[Tensor] = [w.grad_sample for w in weights]  # type: ignore[attr-defined]
    good = torch.stack([g.flatten(1).isfinite().all(dim=1) for g in made]).all(dim=0)
    for w, g in zip(weights, made, strict=True):
        w.grad_sample = torch.where(good.view(-1, *[1] * w.dim()), g, torch.zeros_like(g))  # type: ignore[attr-defined]


def wrap_per_sample(space: Workspace) -> Any:
    """The workspace's module within Opacus' hooks; a module that has no gradients of single samples is refused."""
    try:
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator
    except ImportError:
        raise UserError("DP-SGD needs Opacus, which is not installed: pip install 'coterie[deploy]'.") from None
    space.module.train()
    if ModuleValidator.validate(space.module, strict=False):
        raise UserError("A layer of the model mixes samples (such as batch norm), which dp-sgd cannot train: use group norm.")
    try:
        wrapped = GradSampleModule(space.module, batch_first=True, loss_reduction="sum", strict=False)
        with use_torch_seed(0):
            agrees = _has_correct_gradients(space)
    except Exception as error:
        if (details := find_device_error(error)) is not None:
            raise details from error
        kind = type(error).__name__
        raise UserError(f"The model cannot be trained under dp-sgd: Opacus finds no gradients of its samples ({kind}).") from error
    if not agrees:
        raise UserError("The model cannot be trained under dp-sgd: its samples' gradients are not what each sample alone gives.")
    return wrapped


def _has_correct_gradients(space: Workspace, samples: int = 4) -> bool:
    """Whether Opacus' gradients are those of each sample by itself, and training changes no buffer behind the noise's back.

    Tested once, on noise in the shape of the data, with dropout off.
    """
    module, x = space.module, space.x
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    shape = (samples, *x.shape[1:])
    drawn = torch.randn(shape, dtype=x.dtype) if x.is_floating_point() else torch.randint(0, max(1, int(x.max())), shape, dtype=x.dtype)
    drawn = drawn.to(space.device)
    weights, before = [w for w in module.parameters() if w.requires_grad], [b.clone() for b in module.buffers()]
    labels = torch.zeros((samples, *space.y.shape[1:]), dtype=space.y.dtype, device=space.device)
    together = _compute_gradient(space, weights, drawn, labels)
    alone = [_compute_gradient(space, weights, drawn[i : i + 1], labels[i : i + 1]) for i in range(samples)]
    same = all(torch.allclose(g[i : i + 1], alone[i][j], rtol=1e-3, atol=1e-5) for j, g in enumerate(together) for i in range(samples))
    return same and all(torch.equal(a, b) for a, b in zip(before, module.buffers(), strict=True))


def _compute_gradient(space: Workspace, weights: list[nn.Parameter], x: Tensor, y: Tensor) -> list[Tensor]:
    for w in weights:
        w.grad = w.grad_sample = None  # type: ignore[attr-defined]
    with silence_hook_warnings():
        torch.autograd.backward(space.loss(space.module(x), y).sum())
    if len(x) == 1 and any(not torch.allclose(w.grad, w.grad_sample[0], rtol=1e-3, atol=1e-5) for w in weights):  # type: ignore
        raise ValueError("the gradient of one sample is not the gradient")
    made = [w.grad_sample.clone() for w in weights]  # type: ignore[attr-defined]
    for w in weights:
        w.grad = w.grad_sample = None  # type: ignore[attr-defined]
    return made


@contextmanager
def silence_hook_warnings() -> Iterator[None]:
    """Torch warns that a hook fires at a layer whose inputs need no gradient; Opacus does not use those."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield
