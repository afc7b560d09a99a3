"""What all methods of a study share: how many rounds, who takes part, how clients train, what the world does to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, inf, pi
from typing import Any, Literal

from coterie._util.errors import UserError, suggest_names
from coterie.core.local import Local
from coterie.core.roster import check_sampler
from coterie.core.settings import check_settings, setting
from coterie.core.simulation import parse_attack, parse_speeds, refuse_attack, refuse_speeds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings that all methods of a study share: rounds, cohorts, learning rate, simulated conditions.

    Each field's help is printed by ``coterie run --help``.

    Example:
        Plan(rounds=100, cohort=10, local=Local(epochs=2, lr=0.1))
    """

    rounds: int = setting(30, "Rounds.", least=1)
    cohort: int | None = setting(None, "Clients a round. Default: all that can be reached, or the window's share.", least=1)
    selection: str = setting(
        "uniform",
        "Which clients take part: uniform (a new sample each round), windows (over a random order) or 'package.module:function'.",
    )
    window: float = setting(0.3, "Share of the clients in a window, unless the cohort is given.", above=0, most=1)
    decay: float = setting(1.0, "Factor on the learning rate after each round (of schedule=step: after every step).", above=0, most=1)
    schedule: Literal["exponential", "step", "cosine"] = setting(
        "exponential", "How the learning rate falls: by decay each round, by decay in steps, or to nothing along a cosine."
    )
    step_every: int = setting(10, "Rounds between the steps of schedule=step.", least=1)
    dropout: float = setting(0.0, "Share of clients that do not answer in a round.", least=0, below=1)
    stragglers: float = setting(0.0, "Share of clients that finish only part of their epochs.", least=0, most=1)
    speeds: str | None = setting(
        None, "How long clients take in simulated time: equal, lognormal(1.0), slowed(share=0.1,factor=10), or a CSV file of client,time."
    )
    buffer_size: int | None = setting(
        None, "Aggregate after this many answers; later answers join later rounds (FedBuff). Default: wait for all.", least=1
    )
    concurrency: int | None = setting(None, "Clients at work at once in asynchronous rounds. Default: the cohort's size.", least=1)
    staleness: float = setting(
        0.5, "Exponent a of (1 + t)^-a, the weight of an update that started t asynchronous rounds earlier.", least=0
    )
    attack: str | None = setting(None, "What malicious clients do, such as 'signflip(share=0.2)'. Default: none is malicious.")
    counts: Literal["checked", "believed"] = setting("checked", "Whether sample counts must be those that the roster knows.")
    norm_bound: float = setting(
        20.0, "Medians of the cohort that a client may move from the model it is sent; inf: any way.", least=1, infinite=True
    )
    most_share: float | None = setting(
        None,
        "Largest share of one site's clients in the weights and votes of a model; 1: no bound. Default: no bound in a simulation, 1/3 in a "
        "real federation of at least four sites.",
        above=0,
        most=1,
    )
    loss: Literal["auto", "absolute"] = setting(
        "auto", "What clients minimise: auto (the task's cross-entropy or squared error), or absolute (the absolute error of a regression)."
    )
    evaluate_every: int = setting(1, "Evaluate after every n-th round (and the last).", least=1)
    evaluate_clients: int | None = setting(
        None, "Clients that are evaluated, the same sample for all methods and seeds. Default: all.", least=2
    )
    keep_clients: int | None = setting(
        None,
        "Clients whose rows are kept, a sample; of all evaluated clients, scores and quantiles are kept. Default: all.",
        least=2,
    )
    patience: int | None = setting(
        None, "Stop a run after this many evaluated rounds without a better validation score. Default: never.", least=1
    )
    local: Local = field(default_factory=Local)

    def __post_init__(self) -> None:
        check_settings(self, "A study")
        parse_attack(self.attack)  # a wrong one is refused here
        parse_speeds(self.speeds)  # likewise
        if self.concurrency is not None and self.buffer_size is None:
            raise UserError("A study cannot use concurrency without buffer_size, the number of answers that a round waits for: give both.")
        check_sampler(self.selection)
        if self.schedule == "cosine" and self.decay != 1:
            raise UserError("A study cannot use decay with schedule=cosine, which sets how the rate falls: omit one of them.")
        if self.local.rule is not None:
            raise UserError("A local rule is part of a method, not of a study: give it within a method, by ctx.local.replace(rule=...).")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Plan":
        """The plan that a JSON file holds, in which an infinite bound is null."""
        rest = dict(tree)
        local = Local(**rest.pop("local"))
        if rest.get("norm_bound", 0) is None:
            rest["norm_bound"] = inf
        return cls(**rest, local=local)

    def check_real(self) -> None:
        """Refuse what a real federation does not do: its clients are what they are, and minimise the cross-entropy."""
        refuse_attack(self.attack)
        refuse_speeds(self.speeds)
        if self.loss != "auto":
            raise UserError(f"A real federation carries classifications, and loss={self.loss} is for a regression: omit --loss.")

    def check_sites(self, sites: Sequence[str] | None, data: str) -> None:
        """Refuse, at start-up, what needs to know the site of each client where the data name none."""
        attack = parse_attack(self.attack)
        wanted = attack.site if attack is not None else None
        if sites is None and (wanted is not None or self.most_share not in (None, 1)):
            what = f"most_share={self.most_share:g}" if wanted is None else f"the attack {self.attack!r}"
            raise UserError(
                f"{data!r} does not name the site of each client, which {what} needs: use csv(..., site=COLUMN) or .../sites(4)."
            )
        if sites is not None and wanted is not None and wanted not in sites:
            raise UserError(
                f"The attack {self.attack!r} names a site that {data!r} does not have: {suggest_names(wanted, sorted(set(sites)))}"
            )

    def check(self, clients: int) -> None:
        """Refuse, at start-up, a cohort that the roster cannot fill."""
        if self.cohort is not None and self.cohort > clients:
            raise UserError(f"The cohort is {self.cohort} clients but the federation has only {clients}: use --cohort {clients} or fewer.")
        size = self.cohort_size(clients)
        if self.buffer_size is not None and self.buffer_size > size:
            raise UserError(
                f"A buffer of {self.buffer_size} answers needs a cohort of as many clients, and it has {size}: "
                f"use --buffer-size {size} or fewer."
            )

    def cohort_size(self, clients: int) -> int:
        """How many clients are picked for a round, if all of so many can be reached."""
        window = max(round(self.window * clients), 1) if self.selection == "windows" else clients
        return self.cohort or window

    @property
    def sample_size(self) -> int | None:
        """How many clients rows are written of, where that is a sample; None: everybody."""
        return min((size for size in (self.evaluate_clients, self.keep_clients) if size is not None), default=None)

    def rate_factor(self, round_: int) -> float:
        """What the learning rate is multiplied by in a round; the first round, and the start before it, have the whole rate."""
        passed = max(round_ - 1, 0)
        if self.schedule == "cosine":
            return 0.5 * (1 + cos(pi * passed / self.rounds))
        return float(self.decay ** (passed // self.step_every if self.schedule == "step" else passed))

    def is_evaluated(self, round_: int) -> bool:
        """Whether a round ends with an evaluation."""
        return self.is_evaluated_anyway(round_) or round_ == self.rounds

    def is_evaluated_anyway(self, round_: int) -> bool:
        """Whether it would with more rounds to come."""
        return round_ % self.evaluate_every == 0
