"""What a study holds in memory and on disk, reckoned from what its methods say they hold. Waves follow it; what cannot fit is refused."""

from collections.abc import Sequence

from coterie.core.counted import sized
from coterie.core.errors import UserError
from coterie.engines.free_memory import host_memory
from coterie.run.lanes import Lane

FLOAT = 4  # bytes
COPIES = 3  # of a cohort's models: sent back, and those made while they are accepted and mixed
FEW = 8  # models of a lane itself
STATES = 3  # of what is kept: the state before a round, the one after, and the bytes of a checkpoint


def footprint(lane: Lane, rounds: int | None = None) -> int:
    """Bytes that a lane works with: models sent and sent back, copies made while they are mixed, and what is kept for each client that
    has taken part; at its end, or after so many rounds."""
    models = max(COPIES * _trained(lane), _placed(lane)) + _aloft(lane) + FEW
    return FLOAT * lane.problem.layout.size * models + STATES * kept_by(lane, rounds) + _served(lane)


def least(lane: Lane) -> int:
    """Bytes that it cannot do without: the largest reply, and what it keeps."""
    return FLOAT * lane.problem.layout.size * max(_trained(lane), _placed(lane)) + kept_by(lane) + _served(lane)


def kept_by(lane: Lane, rounds: int | None = None) -> int:
    """Bytes of models that its state holds, at its end or after so many rounds, for clients that took part: what a checkpoint takes."""
    clients, rounds = len(lane.problem.roster), lane.plan.rounds if rounds is None else rounds
    asked = clients if lane.method.holdings.everybody else min(clients, (lane.plan.cohort or clients) * rounds)
    return int(FLOAT * lane.problem.layout.size * asked * lane.method.holdings.kept)


def check_memory(lanes: Sequence[Lane], room: int | None = None) -> None:
    """Refuse lanes of which not even one seed fits into the memory that is there (`room`; what the machine has, unless given)."""
    free = host_memory() if room is None else room
    for pair in dict.fromkeys((lane.key.draw, lane.seed) for lane in lanes):
        wave = [lane for lane in lanes if (lane.key.draw, lane.seed) == pair]
        if (needed := sum(map(least, wave))) > free:
            most = max(wave, key=least)
            raise UserError(
                f"One seed of this study holds {sized(needed)} of clients' models at the least, {sized(least(most))} of them for "
                f"{most.label}, and {sized(free)} of memory are free: leave such methods away, take fewer clients or a smaller model, or "
                "look at fewer clients with --evaluate-clients."
            )


def told_of_spill(waves: Sequence[Sequence[Lane]], most: int) -> str | None:
    """A sentence where a wave's replies are more bytes than stay on the GPU: they are then on the host, and made into models there."""
    wave = max(waves, key=_sent_back, default=())
    if (size := _sent_back(wave)) <= most:
        return None
    who = f"clients of {wave[0].label} send" if len(wave) == 1 else f"clients of {len(wave)} lanes send"
    return (
        f"What {who} back at once ({sized(size)}) is more than the {sized(most)} that stay on the GPU: it is kept on the host, and rounds "
        "wait for that; less --memory, fewer clients at a time (--cohort, --evaluate-clients) or a smaller model would not."
    )


def _sent_back(wave: Sequence[Lane]) -> int:
    return sum(FLOAT * lane.problem.layout.size * max(_trained(lane), _placed(lane)) for lane in wave)


def _trained(lane: Lane) -> int:
    """Clients whose models come back at once, at most, to be mixed."""
    clients, holdings = len(lane.problem.roster), lane.method.holdings
    return clients if holdings.everybody else min(max(lane.plan.cohort or clients, holdings.gathered), clients)


def _placed(lane: Lane) -> int:
    """Newcomers whose models come back at once, at most, to be compared."""
    holdings, clients, everybody = lane.method.holdings, len(lane.problem.roster), lane.problem.everybody
    if not holdings.placing:
        return 0
    unseen = 0 if everybody is None else len(everybody.roster) - clients
    come = max(0 if holdings.everybody else min(lane.plan.evaluate_clients or clients, clients), unseen)
    return min(come, holdings.placed_at_once(lane.problem.layout.size, lane.plan.cohort or clients))


def _aloft(lane: Lane) -> int:
    """Answers that are still to come in asynchronous rounds, and the models that they began from."""
    return 0 if lane.plan.asynchronous is None else 2 * (lane.plan.concurrency or lane.plan.cohort or len(lane.problem.roster))


def _served(lane: Lane) -> int:
    """Bytes of models that are made for evaluated clients alone."""
    clients = min(lane.plan.evaluate_clients or len(lane.problem.roster), len(lane.problem.roster))
    return int(FLOAT * lane.problem.layout.size * clients * lane.method.holdings.served)
