"""The site's worker: admits asks by the policy, charges their cost, runs them on the site's engine and logs what leaves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b, sha256
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie._util.errors import UserError
from coterie.core import states
from coterie.core.arrays import Ints
from coterie.core.asks import Ask, DataPart, Evaluate, Evaluated, Losses, Reply, Share, Train, Trained
from coterie.core.replies import make_empty_reply
from coterie.data.federation import Federation
from coterie.deploy.files import get_kit_files
from coterie.deploy.messages import Denial, SiteCard
from coterie.deploy.site.aggregation import aggregate_card, aggregate_reply, deny_ask, is_for_site, join_hashes, spread_ask
from coterie.deploy.site.ask_fields import NAME_LENGTH, abbreviate
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.disclosure import Discloser, RoundingContext, hash_models
from coterie.deploy.site.ledger import Book, Charge, Ledger
from coterie.deploy.site.permission import count_ask, deny_models
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy, Policy, read_policy
from coterie.deploy.site.privacy import (
    PoissonSteps,
    PrivateTrainer,
    add_test_noise,
    choose_mechanism,
    count_releases,
    privatise_reply,
    strip_noise,
)
from coterie.engines.device import DeviceError
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.local_engine import Work
from coterie.engines.sketching import remove_sketch, sketch_reply
from coterie.engines.world import World


@dataclass(frozen=True)
class MessageSizes:
    """The weight of an ask and of what was sent, and how long the vectors were that left."""

    bytes_in: int
    bytes_out: int = 0
    sha256: str | None = None
    norms: Mapping[str, float] = field(default_factory=dict)  # by client id

    @classmethod
    def of(cls, bytes_in: int, ask: Ask[Any], reply: Reply, message: bytes, ids: Sequence[str]) -> "MessageSizes":
        norms = {ids[client]: norm for client, norm in zip(reply.clients.tolist(), compute_norms(ask, reply), strict=True)}
        return cls(bytes_in, len(message), sha256(message).hexdigest(), norms)


def make_entry(
    asked: StampedAsk, ids: Sequence[str], silent: Sequence[str], sizes: MessageSizes, outcome: Reply | Denial | None
) -> dict[str, Any]:
    """A line of the log."""
    ask: Any = asked.ask
    share = getattr(ask, "share", None)
    response = {name: getattr(ask, name, None) for name in ("purpose", "part")}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "round": _to_loggable(asked.round_),
        "seed": _to_loggable(asked.seed),
        "lane": _to_loggable(asked.lane),
        "ask": ask.kind,
        "purpose": _to_loggable(response["purpose"]),
        "part": _to_loggable(response["part"] or "train"),
        "share": {name: _to_loggable(value) for name, value in vars(share).items()} if isinstance(share, Share) else _to_loggable(share),
        "clients": list(ids),
        "silent": list(silent),
        "bytes_in": sizes.bytes_in,
        "bytes_out": sizes.bytes_out,
        "norms": dict(sizes.norms),
        "sha256": sizes.sha256,
        "denied": outcome.reason if isinstance(outcome, Denial) else None,
        "cause": outcome.cause if isinstance(outcome, Denial) else None,
    }


def _to_loggable(value: Any) -> int | str | None:
    """A field as the wire had it: what is refused is logged, too, and may be anything, and of any length."""
    small = type(value) is int and value.bit_length() <= 64
    word = isinstance(value, str) and len(value) <= NAME_LENGTH
    return value if value is None or isinstance(value, bool) or small or word else abbreviate(value)


def compute_norms(ask: Ask[Any], reply: Reply) -> list[float]:
    """For each client, the L2 norm of what left: of a training how far the model went, else of all its numbers."""
    n = len(reply.clients)
    if isinstance(ask, Train) and ask.sketch is None and isinstance(reply, Trained):
        start = {int(client): ask.models[row] for client, row in zip(ask.clients, ask.start, strict=True)}
        return [float(np.linalg.norm(v.astype(np.float64) - start[int(c)])) for c, v in zip(reply.clients, reply.vectors, strict=True)]
    columns = [np.asarray(getattr(reply, name), dtype=np.float64).reshape(n, -1) for name in reply.columns()] if n else []
    return np.linalg.norm(np.nan_to_num(np.hstack(columns)), axis=1).tolist() if n else []


def pack_reply(reply: Reply) -> bytes:
    """A reply as bytes; default where the transport does not bring its own."""
    return states.pack(reply, lambda kind: kind.__name__)


def count_bytes(value: Any) -> int:
    """The bytes of the arrays within an ask."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(count_bytes, value.values()))
    if isinstance(value, tuple):
        return sum(map(count_bytes, value))
    return sum(count_bytes(getattr(value, f.name)) for f in fields(value)) if is_dataclass(value) and not isinstance(value, type) else 0


MEGABYTE = 1_000_000
SHOWN_LENGTH = 300  # characters of an error's text
TEST_SUFFIX = " (test samples)"  # after a client's id: the budget of its test samples under dp-sgd


@dataclass(eq=False)  # it holds arrays
class _AskCase:
    """One ask while the site answers it."""

    asked: StampedAsk
    bytes_in: int
    stamped: StampedAsk  # with the clients that answer
    outcome: Reply | Denial | None = None
    plans: tuple[PoissonSteps, ...] = ()  # for each client that answers, the private training that was charged
    digests: tuple[Sequence[bytes], ...] = ()  # likewise, hashes of the models on which it is evaluated
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
        pack: Callable[[Reply], bytes] = pack_reply,
        device: str = "cpu",
        own: Federation | None = None,
        hashes: Mapping[str, str] | None = None,
        site: str = "site",
    ) -> None:
        """`run` names the run in the log; `pack` makes the bytes that are sent, whose hash is logged; `device` is DP-SGD's; `own` are the
        data as the site has them, where those of the world are in an order of columns that a server asked for; `hashes` are those of the
        clients' data, where a server's schema decides what is read of them; `site` is the one client of a policy that aggregates."""
        self.world, self.engine, self.policy, self.audit, self.ledger = world, engine, policy, audit, privacy_state
        self.run, self.pack, self.device, self.own = run, pack, device, own or world.federation
        self._hashes, self.site = hashes, site
        self._seen: set[tuple[str, str, bytes]] = set()  # of what clients were evaluated on by this process: client, part, model
        if privacy_state.audit is None:
            self.ledger = Ledger(privacy_state.path, audit)  # a worker checks the seal
        denied = policy.deny_model_name(world.model.text)
        if denied is not None:
            raise UserError(denied.reason)
        largest = int(world.federation.train.sizes.max())
        if isinstance(policy.privacy, DpSgd) and policy.privacy.delta * largest >= 1:
            raise UserError(
                f"The policy's privacy.delta={policy.privacy.delta:g} is too large for {largest} samples: set it below {1 / largest:.1g}."
            )

    def answer(self, stampeds: Sequence[StampedAsk], bytes_in: Sequence[int] | None = None) -> list[Reply | Denial]:
        """One reply, or why there is none, for each ask, in their order. `bytes_in` are the weights of the messages, if known."""
        weights = [count_bytes(s.ask) for s in stampeds] if bytes_in is None else bytes_in
        cases = [_AskCase(s, weight, s) for s, weight in zip(stampeds, weights, strict=True)]
        if self.policy.aggregate:
            cases = [self._spread(case) for case in cases]
        self._admit_all(cases)
        self._execute([case for case in cases if case.outcome is None])
        return [self._sent(case) for case in cases]

    def _spread(self, case: _AskCase) -> _AskCase:
        """An ask to the site's one client, as one to each of its own."""
        if not is_for_site(case.asked):
            return replace(case, outcome=Denial("The site sends one reply for all of its clients: ask its one client, once."))
        made = spread_ask(case.asked, len(self.world.federation))
        return replace(case, asked=made, stamped=made, outcome=deny_ask(made.ask))

    @cached_property
    def trainer(self) -> PrivateTrainer:
        """Trains under dp-sgd, instead of the engine."""
        assert isinstance(self.policy.privacy, DpSgd)
        return PrivateTrainer(self.world, self.policy.privacy, self.device)

    def disclose_card(self, card: SiteCard) -> SiteCard:
        """A site's card as it may leave."""
        hashes = [self.data[name] for name in card.ids]
        if self.policy.aggregate:
            least, tests = self.policy.minimum_samples, self.world.federation.test.sizes
            trains = self.world.federation.train.sizes >= least
            judged = trains & ((tests >= least) | (tests == 0))
            card, hashes = aggregate_card(card, self.site, trains, judged), [join_hashes(list(compress(hashes, judged)) or [""])]
        return replace(card, sizes=self.policy.disclose_sizes(card.sizes), actual=self.discloser.tests(card.actual, hashes))

    @cached_property
    def data(self) -> dict[str, str]:
        """By client, a hash of its samples, in whatever order and part: another name for the same data is known by it."""
        if self._hashes is not None:
            return dict(self._hashes)
        federation = self.own  # a server that asks for other columns again and again is not to get other random roundings
        parts = [part for part in (federation.train, federation.validation, federation.test) if part is not None]
        return {name: _hash_samples(federation, np.concatenate([part[i] for part in parts])) for i, name in enumerate(federation.ids)}

    @cached_property
    def discloser(self) -> Discloser:
        """Rounds and withholds what replies disclose beside models."""
        with self.ledger.spending(self.run) as book:  # which keeps the secret of the rounding from the first answer on
            return Discloser(self.policy, book.secret, len(self.world.federation.classes), self.world.federation.task)

    def _admit_all(self, cases: Sequence[_AskCase]) -> None:
        """Decide about all asks, and write down what they cost at once: nothing is worked on that is not in the ledger."""
        try:
            with self.ledger.spending(self.run) as book:
                for case in cases:
                    self._run_guarded(case, partial(self._admit, book=book))
        except (UserError, OSError) as error:
            self._seen.clear()  # what was counted is not in the ledger
            for case in cases:
                case.error = case.error or str(error)
                case.outcome = Denial(
                    "The site's privacy ledger or its log cannot be used, and it answers nothing without them: inform its operator.",
                    "failure",
                )

    def _admit(self, case: _AskCase, book: Book) -> None:
        """Permission, then the clients that may answer, then what their answers cost."""
        if case.outcome is not None:
            return
        if case.bytes_in > self.policy.message_megabytes * MEGABYTE:
            limit = f"{self.policy.message_megabytes:g} MB"
            case.outcome = Denial(f"The ask has {case.bytes_in / MEGABYTE:.1f} MB: the site's policy takes {limit}.")
            return
        case.outcome = self.policy.find_denial(case.asked, self.world)
        if case.outcome is None:
            case.outcome = count_ask(self.policy, case.asked, self.world, book, self.run)
        if case.outcome is None:
            case.stamped = self._to(case.stamped, self._find_large_enough(case.stamped))
            case.digests = tuple(hash_models(case.stamped.ask))
        if case.outcome is None and len(_get_clients(case.stamped)):
            case.outcome = self._count_models(case, book) or self._charge(case, book)
        if case.outcome is None and not len(_get_clients(case.stamped)):
            case.outcome = make_empty_reply(case.stamped.ask)

    def _find_large_enough(self, stamped: StampedAsk) -> Any:
        """Which of the clients asked have the samples: to train on at all, and among those that the ask is about."""
        clients, least, part = _get_clients(stamped), self.policy.minimum_samples, _get_part(stamped)
        work = Work.bind(stamped, self.world.at_round(stamped.round_))
        asked_about, whole = work.parts(part).sizes[clients], work.world.federation.part(part).sizes[clients]
        holds = self.world.federation.train.sizes[clients] >= least
        share: Share | None = getattr(stamped.ask, "share", None)
        if share is not None:  # an answer about all but a few, less one about all, is one about these few
            among = whole if share.outer is None else share.outer.count(whole)
            for left in (whole - among, among - replace(share, left_out=None).count(among)):
                holds &= (left >= least) | (left == 0)
        return holds & ((asked_about >= least) | (asked_about == 0))  # an answer from no samples discloses nothing

    def _count_models(self, case: _AskCase, book: Book) -> Denial | None:
        """Count the models on which clients are evaluated. One that was asked about before in this process, in the same way, shows nothing
        new. Clients that would pass a limit drop out; where all would, the ask is denied."""
        if not case.digests:
            return None
        ids, about = self._ids(case.stamped), _describe_question(case.stamped)
        denied: dict[str, Denial] = {}
        for name, models in zip(ids, case.digests, strict=True):
            new = {(name, about, model) for model in models} - self._seen
            counts = book.count_models(self.run, name, len(new), self.data)
            over = deny_models(self.policy, *counts) if new else None
            if over is not None:
                book.count_models(self.run, name, -len(new), self.data)
                denied[name] = over
            else:
                self._seen |= new
        self._keep(case, [name not in denied for name in ids])
        return None if self._leaves_enough(denied, ids) else next(iter(denied.values()))

    def _leaves_enough(self, over: Collection[str], ids: Sequence[str]) -> bool:
        """Whether an answer is left without the clients that are over a limit; one reply for all is not one for some of them, which, less
        that one, would show what the others answer."""
        return not over or (len(over) < len(ids) and not self.policy.aggregate)

    def _charge(self, case: _AskCase, book: Book) -> Denial | None:
        """Write down what the answer will cost. Clients that cannot afford it drop out; where none can, the ask is denied."""
        ask, ids = case.stamped.ask, self._ids(case.stamped)
        privacy, names = choose_mechanism(ask, self.policy.privacy), ids
        if isinstance(privacy, DpSgd) and isinstance(ask, Train):
            case.plans = tuple(self.trainer.steps(ask))
            costs = [self.trainer.cost(plan) for plan in case.plans]
        elif isinstance(privacy, DpSgd):  # an evaluation of test parts, whose samples have a budget of their own
            costs = [Charge("dp-sgd", privacy.noise_multiplier, 1.0, 1)] * len(ids) if privacy.protect_tests else []
            names = [f"{name}{TEST_SUFFIX}" for name in ids]
        elif isinstance(privacy, ClipNoise):
            costs = [Charge("clip+noise", privacy.multiplier, 1.0, count_releases(ask))] * len(ids)
        else:
            costs = [Charge("exact", 0.0, 1.0, 1)] * len(ids) if _get_part(case.stamped) == "train" else []
        if not costs:
            return None
        data = {name: self.data[client] + name.removeprefix(client) for name, client in zip(names, ids, strict=True)}
        before = {name: list(charges) for name, charges in book.charges.items()}
        over = book.charge(dict(zip(names, costs, strict=True)), privacy, data)
        self._keep(case, [name not in over for name in names])
        if self._leaves_enough(over, ids):
            return None
        if len(over) < len(ids):  # nothing leaves, and nothing is spent
            book.charges.clear()
            book.charges.update(before)
        limit = cast(ClipNoise | DpSgd, privacy).epsilon_limit
        least = min(over.values())
        return Denial(f"The privacy budget does not suffice: epsilon would be {least:.3g}, and the site's limit is {limit:g}.", "budget")

    def _keep(self, case: _AskCase, keep: Sequence[bool]) -> None:
        """Continue with these clients alone: whatever was decided about each is cut alike."""
        case.stamped = self._to(case.stamped, np.array(keep, dtype=np.bool_))
        case.plans, case.digests = tuple(compress(case.plans, keep)), tuple(compress(case.digests, keep))

    def _execute(self, cases: Sequence[_AskCase]) -> None:
        """The asks that may be answered: all at once, and one by one where that fails, so that one that fails costs no other its answer."""
        private = [case for case in cases if isinstance(self.policy.privacy, DpSgd) and isinstance(case.stamped.ask, Train)]
        for case in private:
            self._run_guarded(case, self._train)
        plain = [case for case in cases if case not in private]
        try:
            for case, reply in zip(plain, self.engine.run([self._for_engine(case) for case in plain]) if plain else [], strict=True):
                case.outcome = reply
        except Exception:  # whatever a module, a driver or the memory has
            for case in plain:
                self._run_guarded(case, self._run)

    def _train(self, case: _AskCase) -> None:
        ask = case.stamped.ask  # what is made of a private model is private, too: sketches cost nothing more
        case.outcome = sketch_reply(ask, self.trainer.train(cast(Train, remove_sketch(ask)), case.plans), self.world.model.layout)

    def _run(self, case: _AskCase) -> None:
        (case.outcome,) = self.engine.run([self._for_engine(case)])

    def _for_engine(self, case: _AskCase) -> StampedAsk:
        """The ask as the engine gets it: without keyed noise, and with losses that have a bound unless exact ones may leave."""
        ask = strip_noise(case.stamped.ask)
        if isinstance(ask, (Losses, Evaluate)):
            bounded = self.discloser.rounds or not isinstance(self.policy.privacy, NoPrivacy)
            ask = replace(ask, loss_limit=self.discloser.limit if bounded else None)
        return replace(case.stamped, ask=ask)

    def _sent(self, case: _AskCase) -> Reply | Denial:
        """The outcome as it leaves: private, with the counts that may leave, and in the log. What cannot be logged does not leave."""
        sizes = MessageSizes(case.bytes_in)
        if isinstance(case.outcome, Reply):
            sizes = self._run_guarded(case, self._prepared) or sizes
        outcome = case.outcome
        assert outcome is not None
        try:
            self.audit.append(self._entry(case, sizes))
        except (OSError, UserError):
            return Denial("The site could not write its log, and sends nothing without: inform its operator.", "failure")
        return outcome

    def _prepared(self, case: _AskCase) -> MessageSizes:
        reply, privacy = cast(Reply, case.outcome), choose_mechanism(case.stamped.ask, self.policy.privacy)
        ids: Any = self.world.federation.ids
        if self.policy.aggregate and len(reply):
            reply, ids = aggregate_reply(reply), {int(reply.clients[0]): self.site}
        limit, classes = self.discloser.limit, len(self.world.federation.classes)
        noised = isinstance(privacy, ClipNoise)
        if isinstance(privacy, ClipNoise):
            reply = privatise_reply(case.stamped.ask, reply, privacy, self.world.model.layout, limit, classes)
        elif isinstance(privacy, DpSgd) and privacy.protect_tests and isinstance(reply, Evaluated):
            reply, noised = add_test_noise(reply, privacy.noise_multiplier, limit), True
        case.outcome = self.discloser.disclose_reply(reply, _get_part(case.stamped), self._question(case, reply), noised=noised)
        sizes = MessageSizes.of(case.bytes_in, case.stamped.ask, case.outcome, self.pack(case.outcome), ids)
        if sizes.bytes_out > self.policy.message_megabytes * MEGABYTE:
            most = f"{self.policy.message_megabytes:g} MB"
            case.outcome = Denial(f"The reply has {sizes.bytes_out / MEGABYTE:.1f} MB: the site's policy lets {most} out.")
            return MessageSizes(case.bytes_in)
        if self.policy.aggregate:
            case.outcome = replace(case.outcome, clients=np.zeros(len(case.outcome), dtype=np.int64))
        return sizes

    def _question(self, case: _AskCase, reply: Reply) -> RoundingContext:
        """What the answer is rounded by, row by row of the reply."""
        place = {int(client): row for row, client in enumerate(_get_clients(case.stamped))}
        rows = [place[int(client)] for client in reply.clients]
        ids = self.world.federation.ids
        clients = _get_clients(case.stamped) if self.policy.aggregate else reply.clients
        samples = Work.bind(case.stamped, self.world.at_round(case.stamped.round_)).parts(_get_part(case.stamped)).sizes[clients]
        data = [self.data[ids[client]] for client in clients.tolist()]
        if self.policy.aggregate:
            samples, data = samples.sum(keepdims=True), [join_hashes(data)]
        models = [case.digests[row] for row in rows] if case.digests else [()] * len(rows)
        return RoundingContext(_describe_question(case.stamped), data, samples, models)

    def _entry(self, case: _AskCase, sizes: MessageSizes) -> dict[str, Any]:
        privacy, ids = self.policy.privacy, self._ids(case.stamped)
        silent = [name for name in self._ids(case.asked) if name not in ids]
        spent: dict[str, Any] = {"mechanism": privacy.mechanism}
        if isinstance(privacy, (ClipNoise, DpSgd)):
            tests = TEST_SUFFIX if isinstance(privacy, DpSgd) and _get_part(case.stamped) == "test" else ""
            data = {f"{name}{tests}": f"{self.data[name]}{tests}" for name in ids if name in self.data}
            epsilons = self.ledger.book.spent(privacy, data, data)
            spent |= {"unit": privacy.unit, "delta": privacy.delta, "epsilon": epsilons}
        return {"run": self.run, **make_entry(case.asked, ids, silent, sizes, case.outcome), "error": case.error or None, "privacy": spent}

    def _run_guarded(self, case: _AskCase, step: Callable[[_AskCase], Any]) -> Any:
        """Take a step; what it raises becomes this ask's failure."""
        try:
            return step(case)
        except Exception as error:
            if isinstance(error, UserError):  # written for people, about settings
                case.error = error.fact if isinstance(error, DeviceError) else str(error)
            else:
                case.error = f"{type(error).__name__}: {str(error)[:SHOWN_LENGTH]}"
            withheld = f"The site could not answer ({type(error).__name__}): its log has the text, which the policy keeps."
            sentence = f"The site could not answer: {case.error}" if self.policy.discloses_errors else withheld
            case.outcome = Denial(sentence, "failure")
            return None

    def _to(self, stamped: StampedAsk, keep: Any) -> StampedAsk:
        ask: Any = stamped.ask
        return stamped if keep.all() else replace(stamped, ask=ask.take(keep))

    def _ids(self, stamped: StampedAsk) -> list[str]:
        ids = self.world.federation.ids
        return [ids[client] if 0 <= client < len(ids) else f"#{client}" for client in _get_clients(stamped).tolist()]


def open_worker(kit: Path, world: World, engine: Engine, **options: Any) -> SiteWorker:
    """The worker of a kit folder: with its policy, its ledger and its log."""
    files = get_kit_files(kit)
    audit = Audit(files.audit)
    return SiteWorker(world, engine, read_policy(files.policy), audit, Ledger(files.ledger, audit), **options)


def _get_clients(stamped: StampedAsk) -> Any:
    ask: Any = stamped.ask
    return np.asarray(ask.clients)


def _describe_question(stamped: StampedAsk) -> str:
    """What beside the model an evaluation depends on."""
    ask, share = stamped.ask, getattr(stamped.ask, "share", None)
    about = "" if share is None else f" {' '.join(map(str, share.key))} {stamped.seed if share.fold is not None else ''}"
    return f"{type(ask).__name__} {_get_part(stamped)}{about}"


def _hash_samples(federation: Federation, samples: Ints) -> str:
    """A hash of samples that does not depend on their order."""
    each = sorted(blake2b(federation.x[i].tobytes() + federation.y[i].tobytes(), digest_size=16).digest() for i in samples.tolist())
    return blake2b(b"".join(each), digest_size=16).hexdigest()


def _get_part(stamped: StampedAsk) -> DataPart:
    """The part of the data that an answer comes from; the server's own test set is refused before."""
    return cast(DataPart, getattr(stamped.ask, "part", "train"))
