"""A federation of three hospitals within this process, with kits, logs, a journal and evidence on disk as real sites leave them."""

import json
from collections.abc import Mapping
from pathlib import Path

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.messages import AskBatch, Denial, ReplyBatch, from_message, is_kind, to_message
from coterie.deploy.server.federation import FederationFolder, write_presence
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Journal, Order, RunFolder
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from coterie.evidence.settings import Settings
from coterie.run.waves import TimeBudget
from deploy.ordering import APPROVING_POLICY

HOSPITALS = ("cleveland", "hungary", "va")
MALICIOUS = "<script>alert(1)</script><img src=x onerror=alert(2)>"  # in the reason with which va refuses to train
PRIVATE = 'mechanism = "clip+noise"\nclip = 1.0\nnoise = 4.0\ndelta = 1e-5\nepsilon_limit = 10.0'


class InnerSites:
    """Carries bytes to sites in this process. One of them refuses to train, with words that are no words."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = sites

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.answer(site, data) for site, data in batches.items()}

    def answer(self, site: str, data: bytes) -> bytes:
        response = self.sites[site].answer(data)
        if site != "va" or not is_kind(data, AskBatch):
            return response
        batch, own = from_message(data, AskBatch), from_message(response, ReplyBatch)
        pairs = zip(batch.asks, own.answers, strict=True)
        answers = tuple(Denial(MALICIOUS) if stamped.ask.kind == "Train" else answer for stamped, answer in pairs)
        return to_message(ReplyBatch(own.protocol, own.run, own.number, own.ids, answers, own.order))


def run_small_federation(folder: Path) -> FederationFolder:
    """A federation with one complete run of two methods and three rounds; the privacy of hungary is noised."""
    federation = FederationFolder(folder, "127.0.0.1", 8102, HOSPITALS, ("closed",))
    for place in (folder, federation.server, federation.runs):
        place.mkdir(parents=True)
    federation.write()
    for site in HOSPITALS:
        kit = federation.kit(site)
        kit.mkdir(parents=True)
        policy = APPROVING_POLICY.replace("samples = 10", "samples = 5")
        (kit / "policy.toml").write_text(policy.replace('mechanism = "none"', PRIVATE) if site == "hungary" else policy)
        (kit / "kit.json").write_text(json.dumps({"site": site, "server": "127.0.0.1:8102"}))
        SiteSettings("heart", (site,), engine="loop", threads=1).write(kit)
    plan = Plan(rounds=3, local=Local(epochs=1, lr=0.05))
    settings = Settings(methods=("fedavg", "fedgroup(groups=2,alpha=2)"), data="heart", plan=plan, seeds=(0, 1))
    run = RunFolder(federation.runs / "first")
    order = Order("first", "study", settings.as_json(), HOSPITALS, 3, operator="<b>operator</b>", purpose="To test, & to show")
    run.place(order, 60.0)
    journal = Journal(run.folder)
    journal.begin(list(HOSPITALS))
    carrier = InnerSites({site: Site(federation.kit(site)) for site in HOSPITALS})
    over = {"clock": TimeBudget(120.0), "report": journal.fault, "watchers": [journal], "schema_file": folder / "schema.json"}
    assert run_order(order, carrier, HOSPITALS, run.folder, **over)  # type: ignore[arg-type]
    journal.append("left", {"site": "va"})
    journal.end("complete")
    write_presence(federation.server, {"cleveland": 0.0, "hungary": 0.0}, {}, {"cleveland": 1000.0, "va": 2000.0})
    return federation
