"""A site's worker: between what the server asks and what the site's own engine answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie.core.acceptance import nobody
from coterie.core.asks import DataPart, Reply, Train
from coterie.core.errors import UserError
from coterie.deploy.accountant import Charge
from coterie.deploy.audit import Audit
from coterie.deploy.denied import Denied
from coterie.deploy.disclosure import disclosed
from coterie.deploy.dp_sgd import PrivateTrainer
from coterie.deploy.files import kit_files
from coterie.deploy.ledger import Ledger
from coterie.deploy.mechanisms import ClipNoise, DpSgd
from coterie.deploy.policy import Policy, read_policy
from coterie.deploy.privacy import mechanism_for, privatised, releases, without_noise
from coterie.deploy.record import Sizes, entry_of, packed, weight_of
from coterie.deploy.sketch_limit import FILE, SketchLimit
from coterie.engines.device_faults import DeviceError
from coterie.engines.engine import Engine, Stamped
from coterie.engines.local_engine import Work
from coterie.engines.sketching import in_full, sketched
from coterie.engines.world import World

MEGABYTE = 1_000_000
SHOWN = 300  # characters of an error's text


@dataclass(eq=False)  # it holds arrays
class _Case:
    """One ask on its way through the site."""

    asked: Stamped
    bytes_in: int
    stamped: Stamped  # with the clients that answer
    outcome: Reply | Denied | None = None
    error: str = ""  # what went wrong, in full: for the log, not for the server


class SiteWorker:
    """Answers what the policy permits, counts what it costs, and writes down what left."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        policy: Policy,
        audit: Audit,
        privacy_state: Ledger,
        *,
        run: str = "",
        pack: Callable[[Reply], bytes] = packed,
        device: str = "cpu",
    ) -> None:
        """`run` names the run in the log; `pack` makes the bytes that are sent, whose hash is logged; `device` is DP-SGD's."""
        self.world, self.engine, self.policy, self.audit, self.ledger = world, engine, policy, audit, privacy_state
        self.run, self.pack, self.device = run, pack, device
        self.sketches = SketchLimit(policy, privacy_state.path.with_name(FILE), run)
        denied = policy.model_permitted(world.model.text)
        if denied is not None:
            raise UserError(denied.reason)
        largest = int(world.federation.train.sizes.max())
        if isinstance(policy.privacy, DpSgd) and policy.privacy.delta * largest >= 1:
            raise UserError(
                f"The policy's privacy.delta={policy.privacy.delta:g} is too large for {largest} samples: set it below {1 / largest:.1g}."
            )

    def answer(self, stampeds: Sequence[Stamped], bytes_in: Sequence[int] | None = None) -> list[Reply | Denied]:
        """One reply, or why there is none, for each ask, in their order. `bytes_in` are the weights of the messages, if known."""
        weights = [weight_of(s.ask) for s in stampeds] if bytes_in is None else bytes_in
        cases = [_Case(s, weight, s) for s, weight in zip(stampeds, weights, strict=True)]
        for case in cases:
            self._guarded(case, self._admit)
        self._carry_out([case for case in cases if case.outcome is None])
        return [self._sent(case) for case in cases]

    @cached_property
    def trainer(self) -> PrivateTrainer:
        """Trains under dp-sgd, instead of the engine."""
        assert isinstance(self.policy.privacy, DpSgd)
        return PrivateTrainer(self.world, self.policy.privacy, self.device)

    def _admit(self, case: _Case) -> None:
        """Permission, then the clients that may answer, then what their answers cost."""
        if case.bytes_in > self.policy.message_megabytes * MEGABYTE:
            limit = f"{self.policy.message_megabytes:g} MB"
            case.outcome = Denied(f"The ask has {case.bytes_in / MEGABYTE:.1f} MB: the site's policy takes {limit}.")
            return
        case.outcome = self.policy.permitted(case.asked, self.world) or self.sketches.denied(case.asked.ask)
        if case.outcome is None:
            case.stamped = self._to(case.stamped, self._large_enough(case.stamped))
        if case.outcome is None and len(_clients(case.stamped)):
            case.outcome = self._charge(case)
        if case.outcome is None and not len(_clients(case.stamped)):
            case.outcome = nobody(case.stamped.ask)

    def _large_enough(self, stamped: Stamped) -> Any:
        """Which of the clients asked have the samples: to train on at all, and among those that the ask is about."""
        clients, least, part = _clients(stamped), self.policy.minimum_samples, _part(stamped)
        asked_about = Work(stamped, self.world.at(stamped.round_)).parts(part).sizes[clients]
        holds = self.world.federation.train.sizes[clients] >= least
        return holds & ((asked_about >= least) | (asked_about == 0))  # of no samples an answer tells nothing; the engine knows what to do

    def _charge(self, case: _Case) -> Denied | None:
        """Write down what the answer will cost. Clients that cannot afford it drop out; where none can, the ask is denied."""
        ask = case.stamped.ask
        privacy = mechanism_for(ask, self.policy.privacy)
        if isinstance(privacy, DpSgd):
            costs = self.trainer.costs(ask) if isinstance(ask, Train) else []
        elif isinstance(privacy, ClipNoise) and releases(ask):
            costs = [Charge("clip+noise", privacy.multiplier, 1.0, releases(ask))] * len(_clients(case.stamped))
        else:
            costs = [Charge("exact", 0.0, 1.0, 1)] * len(_clients(case.stamped)) if _part(case.stamped) == "train" else []
        if not costs:
            return None
        ids = self._ids(case.stamped)
        over = self.ledger.charge(dict(zip(ids, costs, strict=True)), privacy)
        case.stamped = self._to(case.stamped, np.array([name not in over for name in ids], dtype=np.bool_))
        if len(over) < len(ids):
            return None
        limit = cast(ClipNoise | DpSgd, privacy).epsilon_limit
        least = min(over.values())
        return Denied(f"The privacy budget does not suffice: epsilon would be {least:.3g}, and the site's limit is {limit:g}.", "budget")

    def _carry_out(self, cases: Sequence[_Case]) -> None:
        """The asks that may be answered: all at once, and one by one where that fails, so that one that fails costs no other its answer."""
        private = [case for case in cases if isinstance(self.policy.privacy, DpSgd) and isinstance(case.stamped.ask, Train)]
        for case in private:
            self._guarded(case, self._train)
        plain = [case for case in cases if case not in private]
        try:
            for case, reply in zip(plain, self.engine.run([_for_engine(case) for case in plain]) if plain else [], strict=True):
                case.outcome = reply
        except Exception:  # whatever a module, a driver or the memory has
            for case in plain:
                self._guarded(case, self._run)

    def _train(self, case: _Case) -> None:
        ask = case.stamped.ask  # what is made of a private model is private, too: sketches cost nothing more
        case.outcome = sketched(ask, self.trainer.train(cast(Train, in_full(ask))), self.world.model.layout)

    def _run(self, case: _Case) -> None:
        (case.outcome,) = self.engine.run([_for_engine(case)])

    def _sent(self, case: _Case) -> Reply | Denied:
        """The outcome as it leaves: private, with the counts that may be told, and in the log. What cannot be logged does not leave."""
        sizes = Sizes(case.bytes_in)
        if isinstance(case.outcome, Reply):
            sizes = self._guarded(case, self._prepared) or sizes
        outcome = case.outcome
        assert outcome is not None
        try:
            self.audit.append(self._entry(case, sizes))
        except (OSError, UserError):
            return Denied("The site could not write its log, and sends nothing without: tell its operator.", "failure")
        return outcome

    def _prepared(self, case: _Case) -> Sizes:
        reply, privacy = cast(Reply, case.outcome), mechanism_for(case.stamped.ask, self.policy.privacy)
        if isinstance(privacy, ClipNoise):
            reply = privatised(case.stamped.ask, reply, privacy, self.world.model.layout)
        case.outcome = disclosed(reply, self.policy, _part(case.stamped))
        sizes = Sizes.of(case.bytes_in, case.stamped.ask, case.outcome, self.pack(case.outcome), self.world.federation.ids)
        if sizes.bytes_out > self.policy.message_megabytes * MEGABYTE:
            limit = f"{self.policy.message_megabytes:g} MB"
            case.outcome = Denied(f"The reply has {sizes.bytes_out / MEGABYTE:.1f} MB: the site's policy lets {limit} out.")
            return Sizes(case.bytes_in)
        return sizes

    def _entry(self, case: _Case, sizes: Sizes) -> dict[str, Any]:
        privacy, ids = self.policy.privacy, self._ids(case.stamped)
        silent = [name for name in self._ids(case.asked) if name not in ids]
        spent: dict[str, Any] = {"mechanism": privacy.mechanism}
        if isinstance(privacy, (ClipNoise, DpSgd)):
            epsilons = self.ledger.spent(privacy, ids)
            spent |= {"unit": privacy.unit, "delta": privacy.delta, "epsilon": epsilons}
        return {"run": self.run, **entry_of(case.asked, ids, silent, sizes, case.outcome), "error": case.error or None, "privacy": spent}

    def _guarded(self, case: _Case, step: Callable[[_Case], Any]) -> Any:
        """Take a step; what it raises becomes this ask's failure."""
        try:
            return step(case)
        except UserError as error:  # written for people, about settings
            case.error = error.fact if isinstance(error, DeviceError) else str(error)
            case.outcome = Denied(f"The site could not answer: {case.error}" if self.policy.tells_errors else _withheld(error), "failure")
        except Exception as error:
            case.error = f"{type(error).__name__}: {str(error)[:SHOWN]}"
            case.outcome = Denied(f"The site could not answer: {case.error}" if self.policy.tells_errors else _withheld(error), "failure")
        return None

    def _to(self, stamped: Stamped, keep: Any) -> Stamped:
        ask: Any = stamped.ask
        return stamped if keep.all() else replace(stamped, ask=ask.take(keep))

    def _ids(self, stamped: Stamped) -> list[str]:
        ids = self.world.federation.ids
        return [ids[client] if 0 <= client < len(ids) else f"#{client}" for client in _clients(stamped).tolist()]


def open_site(kit: Path, world: World, engine: Engine, **options: Any) -> SiteWorker:
    """The worker of a kit folder: with its policy, its ledger and its log."""
    files = kit_files(kit)
    return SiteWorker(world, engine, read_policy(files.policy), Audit(files.audit), Ledger(files.ledger), **options)


def _clients(stamped: Stamped) -> Any:
    ask: Any = stamped.ask
    return np.asarray(ask.clients)


def _for_engine(case: _Case) -> Stamped:
    return replace(case.stamped, ask=without_noise(case.stamped.ask))


def _part(stamped: Stamped) -> DataPart:
    """The part of the data that an answer comes from; the server's own test set is refused before."""
    return cast(DataPart, getattr(stamped.ask, "part", "train"))


def _withheld(error: Exception) -> str:
    return f"The site could not answer ({type(error).__name__}): its log has the text, which the policy keeps."
