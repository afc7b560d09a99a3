"""A delivery becomes a bundle at the site: what was served, with what only the site knows of its data."""

from pathlib import Path

from coterie.core.serving import COMBINED
from coterie.data.preparing.prepared import preparation_of
from coterie.data.preparing.worded import worded_column_of
from coterie.data.scaling import Scaling
from coterie.deploy.bundle import Bundle, Origin
from coterie.deploy.bundle_files import write_bundle
from coterie.deploy.messages import Delivery
from coterie.deploy.served import feature_names
from coterie.engines.world import World


def write_delivery(delivery: Delivery, world: World, folder: Path) -> Path:
    """Write the bundle of one method into a folder of its name; a later one of the same run takes its place."""
    federation, serving = world.federation, delivery.serving
    scaling, preparation = federation.provenance.get("scaling", {}), preparation_of(federation)
    bundle = Bundle(
        origin=Origin(delivery.method, federation.name, delivery.seed, 0, delivery.round_),
        model=world.model.text,
        input_shape=federation.input_shape,
        classes=federation.classes,
        models=serving.models,
        names=delivery.names,
        clients={name: int(row) for name, row in zip(delivery.ids, serving.rows, strict=True)},
        combiner=serving.combiner if (serving.rows == COMBINED).any() else None,
        tokens=federation.x.dtype.kind != "f",
        features=feature_names(federation),
        scaling={name: Scaling.read(scaling[name]) for name in delivery.ids if name in scaling},
        preparation=None if preparation is None else preparation.of(delivery.ids),
        worded=worded_column_of(federation.provenance),
        several=federation.inputs,
        task=federation.task,
    )
    plain = "".join(c if c.isalnum() or c in "-_.=" else "_" for c in delivery.method)
    out = folder / delivery.run / plain
    write_bundle(bundle, out)
    return out
