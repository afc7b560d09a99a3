"""Every method of the catalogue, and every wrapper around FedAvg, passes the whole battery of contracts."""

from collections.abc import Callable
from functools import partial

import pytest

from coterie.methods.catalogue import build, methods, wrappers
from coterie.testing.contracts import CHECKS, Checked

# The settings in which a method or wrapper is checked; its defaults unless given here.
EXAMPLES = {
    "fedgroup": (
        "fedgroup",
        "fedgroup(groups=2,literal=true,mu=0.5)",
        "fedgroup(groups=auto,choice=silhouette,start_from=w0,assign=random)",
    ),
    "fesem": (
        "fesem",
        "fesem(groups=2,literal=true,newcomers=loss,warmup_by=cohort)",
        "fesem(groups=auto,choice=trial,most=2)",
        "fesem(assign=random)",
    ),
    "fedavg": ("fedavg", "fedavg(weighting=uniform)"),
    "local": ("local", "local(until=epochs,epochs=3)", "local(until=validation)"),
    "guard": ("guard", "guard(rule=median,least=1)"),
    "restarts": ("restarts", "restarts(starts=2,trial=2)"),
    "private": ("private(layers=bias)", "private(layers=bias,train=private_first)", "private(layers=bias,train=shared)"),
    "watch": ("watch(after=1,every=1)", "watch(after=1,every=1,on=loss,policy=new,rate=0.9)"),
    "server": ("server", "server(optimizer=adam,lr=0.1)"),
    "fedex": (
        "fedex(groups=2)",
        "fedex(start_from=first_round,warmup=2,combiner=own)",
        "fedex(groups=auto,choice=silhouette,start_from=fresh)",
        "fedex(groups=2,combiner=gate)",
    ),
    "fedem": ("fedem", "fedem(groups=2,predict=hard,damped=true)", "fedem(groups=auto,most=2,weighting=uniform)"),
    "fedrc": ("fedrc", "fedrc(groups=2,predict=hard)"),
    "fedfew": ("fedfew", "fedfew(groups=2,mu=1)"),
    "fedgwc": ("fedgwc", "fedgwc(eps=2,gamma=5,steps=2)", "fedgwc(eps=2,gamma=5,assign=random)", "fedgwc(eps=2,number=structure,most=2)"),
    "flux": (
        "flux(warmup=1)",
        "flux(warmup=0,groups=2,labels=false)",
        "flux(warmup=0,assign=random)",
        "flux(warmup=0,groups=auto,most=2)",
        "flux(warmup=0,again=1)",
    ),
    "feddrift": ("feddrift", "feddrift(delta=0.001,every=1)", "feddrift(delta=0.5,every=1,assign=random)"),
    "feroma": ("feroma(warmup=0)", "feroma(warmup=1,folds=1,labels=false)"),
    "ifca": ("ifca", "ifca(groups=2,weighting=samples)", "ifca(groups=2,assign=random)", "ifca(groups=auto,choice=silhouette)"),
    "clove": ("clove", "clove(groups=2,patience=1)", "clove(groups=2,assign=random)", "clove(groups=auto,choice=ward,most=4)"),
    "pfedgraph": ("pfedgraph", "pfedgraph(lam=0,shuffled=true)"),
    "apfl": ("apfl", "apfl(adapt=false,alpha=0.8)"),
    "fedala": ("fedala", "fedala(layers=all,rate=0.5)"),
    "fedclust": ("fedclust", "fedclust(groups=2)", "fedclust(threshold=0.5,linkage=ward,assign=random)"),
    "pacfl": ("pacfl", "pacfl(groups=2)", "pacfl(threshold=5,angle=sum,directions=1)", "pacfl(groups=2,by_class=false,assign=random)"),
    "cflgp": (
        "cflgp(groups=2,period=1)",
        "cflgp(groups=2,at=own,until=1,assign=random)",
        "cflgp(groups=auto,choice=silhouette,weighting=samples)",
        "cflgp(groups=2,period=1,sketch=4)",
    ),
    "cfl": ("cfl", "cfl(eps1=2,eps2=0,gamma=0,look=1)", "cfl(relative=false,eps1=9,eps2=0,gamma=0,linkage=complete,look=2)"),
    "flhc": (
        "flhc",
        "flhc(warmup=1)",
        "flhc(warmup=0,groups=3,linkage=average)",
        "flhc(warmup=1,threshold=0.1)",
        "flhc(warmup=0,groups=auto)",
    ),
}
# Those whose models are not what the matrix gives: moved after they were mixed, one of several, or of a rule such as a median;
# pFedGraph's are the clients', beside their average, and what is private is not averaged; clients of FedEM, FedRC and FedFew send
# several models each.
NOT_THE_AGGREGATE = {"auto", "fedem", "fedfew", "fedrc", "pfedgraph", "private", "server", "restarts"}
# a round that begins a time step merges models before it trains
NOT_THE_AGGREGATE |= {"guard(rule=median,least=1)", "feddrift(delta=0.001,every=1)", "feddrift(delta=0.5,every=1,assign=random)"}


def subjects() -> dict[str, Checked]:
    found: dict[str, Checked] = {}
    for name in (*methods, *wrappers):
        for example in EXAMPLES.get(name, (name,)):
            spec = example if name in methods else f"fedavg+{example}"
            found[spec] = Checked(partial(build, spec), aggregate_is_final=not {name, example} & NOT_THE_AGGREGATE)
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("subject", subjects().values(), ids=subjects().keys())
def test_contract(subject: Checked, check: Callable[[Checked], None]) -> None:
    check(subject)
