"""Three sources of error of one difference side by side, and which of them a verdict has to survive."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from coterie.core.arrays import Doubles
from coterie.statistics.intervals import Interval
from coterie.statistics.over_clients import Hits, over_test
from coterie.statistics.over_draws import over_draws
from coterie.statistics.over_seeds import over_seeds


@dataclass(frozen=True)
class Sources:
    """Intervals of one mean difference over seeds, over draws, and over test clients and samples; or a sentence why there is none.

    The interval over draws is over new seeds, too. Where it is there, that over seeds explains and does not decide: three shared seeds
    have two degrees of freedom, and would widen a verdict by what they do not know rather than by what they vary.
    """

    seeds: Interval | str
    draws: Interval | str
    clients: Interval | str

    @property
    def named(self) -> dict[str, Interval | str]:
        return {"seeds": self.seeds, "draws": self.draws, "test clients": self.clients}

    @property
    def estimated(self) -> dict[str, Interval]:
        """The sources whose error is known, by name."""
        return {name: found for name, found in self.named.items() if isinstance(found, Interval)}

    @property
    def unknown(self) -> list[str]:
        """What this study cannot tell, in sentences: sources without an interval, and what those with one leave out."""
        texts = [found if isinstance(found, str) else found.caveat for found in self.named.values()]
        return list(dict.fromkeys(text for text in texts if text))

    @property
    def deciding(self) -> dict[str, Interval]:
        """Those that a verdict has to survive, all of them: draws, or seeds where there is one draw, and test clients.

        A bound is not an error: who did better on the same samples is not known there, and the verdict says so instead.
        """
        found = {name: own for name, own in self.estimated.items() if not own.bound}
        return {name: own for name, own in found.items() if name != "seeds" or "draws" not in found}

    @property
    def widest(self) -> tuple[str, Interval] | None:
        """The widest that decides, by name; None where no error is known."""
        return max(self.deciding.items(), key=lambda item: item[1].width, default=None)

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p that the difference is above a bound whatever the source: the largest of those that decide."""
        return max((own.p_above(bound) for own in self.deciding.values()), default=nan)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p that the difference is below a bound, likewise."""
        return max((own.p_below(bound) for own in self.deciding.values()), default=nan)


def sources_of(differences: Doubles, hits: Sequence[Hits] | str = (), *, shared: bool = True, overlap: float = 1.0) -> Sources:
    """All three from one design: differences of accuracies (draws, seeds) as shares, and right answers of each draw's test clients, or a
    sentence why there are none.

    `shared`: every draw has the same seeds (`over_draws`); `overlap`: how much of one draw's test part is in another's (`over_test`).
    """
    clients = hits if isinstance(hits, str) else over_test(hits, overlap=overlap)
    return Sources(over_seeds(differences, shared=shared), over_draws(differences, shared=shared), clients)
