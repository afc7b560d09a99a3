"""Every method of the catalogue, and every wrapper around FedAvg, passes the whole battery of contracts."""

from collections.abc import Callable
from functools import partial

import pytest

from coterie.methods.catalogue import build, methods, wrappers
from coterie.testing.contracts import CHECKS, Subject

# The settings in which a method or wrapper is checked; its defaults unless given here.
EXAMPLES = {
    "fedgroup": ("fedgroup", "fedgroup(groups=2,literal=true,mu=0.5)", "fedgroup(groups=auto,start_from=w0,assign=random)"),
    "fesem": ("fesem", "fesem(groups=2,literal=true,newcomers=loss,warmup_by=cohort)", "fesem(groups=auto,most=2)", "fesem(assign=random)"),
    "fedavg": ("fedavg", "fedavg(weighting=uniform)"),
    "local": ("local", "local(until=epochs,epochs=3)", "local(until=validation)"),
    "server": ("server", "server(optimizer=adam,lr=0.1)"),
    "fedex": ("fedex(groups=2)", "fedex(start_from=first_round,warmup=2,combiner=own)", "fedex(groups=auto,start_from=fresh)"),
    "ifca": ("ifca", "ifca(groups=2,starts=1)", "ifca(groups=2,starts=3,trial=1,weighting=samples)", "ifca(groups=auto)"),
    "cfl": ("cfl", "cfl(eps1=2,eps2=0)", "cfl(relative=false,eps1=9,eps2=0,linkage=complete)"),
    "flhc": ("flhc", "flhc(warmup=1)", "flhc(warmup=0,groups=3,linkage=average)", "flhc(warmup=1,threshold=0.1)"),
}
# Wrappers that move the models after the method has mixed them.
OPTIMISERS = ("server",)


def subjects() -> dict[str, Subject]:
    found = {spec: Subject(partial(build, spec)) for name in methods for spec in EXAMPLES.get(name, (name,))}
    for name in wrappers:
        for spec in EXAMPLES.get(name, (name,)):
            found[f"fedavg+{spec}"] = Subject(partial(build, f"fedavg+{spec}"), aggregate_is_final=name not in OPTIMISERS)
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("subject", subjects().values(), ids=subjects().keys())
def test_contract(subject: Subject, check: Callable[[Subject], None]) -> None:
    check(subject)
