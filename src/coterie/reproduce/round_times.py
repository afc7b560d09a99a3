"""FedSim's Table 3: how long a round takes, each method alone on the machine at hand."""

from dataclasses import replace
from time import perf_counter

from coterie.data.federation import Federation
from coterie.evidence.settings import Settings
from coterie.reproduce.measured import Measured
from coterie.run.study import Study


def round_times(federation: Federation, settings: Settings) -> list[Measured]:
    """Milliseconds a round by method (`round_ms`) and as a multiple of the first method's (`round_ratio`); by turns, once for each seed.

    A first turn, which compiles, is not counted. Evaluation after the last round is, as it would be in a deployment.
    """
    plan = replace(settings.plan, evaluate_every=settings.plan.rounds)
    found = []
    for turn, seed in enumerate((settings.seeds[0], *settings.seeds)):
        took = {}
        for method in settings.methods:
            one = Study.prepare(replace(settings, methods=(method,), seeds=(seed,), plan=plan), federation=federation)
            began = perf_counter()
            one.run()
            took[method] = 1000 * (perf_counter() - began) / plan.rounds
        if turn:
            base = took[settings.methods[0]]
            found += [Measured(method, "round_ms", seed, ms) for method, ms in took.items()]
            found += [Measured(method, "round_ratio", seed, ms / base) for method, ms in took.items()]
    return found
