"""A delivery becomes a bundle at the site: what was served, with what only the site knows of its data."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from coterie.core.disk import flush
from coterie.core.errors import UserError
from coterie.core.serving import COMBINED
from coterie.data.preparing.prepared import preparation_of
from coterie.data.preparing.worded import worded_column_of
from coterie.data.scaling import Scaling
from coterie.deploy.bundle import Bundle, Origin
from coterie.deploy.bundle_checks import contradiction
from coterie.deploy.bundle_files import write_bundle
from coterie.deploy.messages import Delivery, MessageError
from coterie.deploy.names import is_name, make_folder_name
from coterie.deploy.served import feature_names, table_schema
from coterie.engines.world import World

DRAFT, OLD = ".draft-", ".old-"


def write_delivery(delivery: Delivery, world: World, folder: Path) -> Path:
    """Write the bundle of one method into `folder`/RUN/METHOD, whole or not at all.

    What lies there already gives way: half a bundle, an equal one, or one of an earlier round or of another order of the same name.

    Args:
        delivery: From the server; its names are checked again, because they become folders here.
        world: The site's data and model.
        folder: The kit's `bundles`.

    Returns:
        The folder of the bundle.
    """
    if not is_name(delivery.run) or not isinstance(delivery.method, str) or not delivery.method:
        raise MessageError("a delivery whose run or method is no name")
    if not set(delivery.ids) <= set(world.federation.ids) or type(delivery.seed) is not int or type(delivery.round_) is not int:
        raise MessageError("a delivery of other clients, or without a seed and a round")
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
        schema=table_schema(federation),
        task=federation.task,
    )
    out = folder / delivery.run / make_folder_name(delivery.method)
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in (*out.parent.glob(f"{DRAFT}*"), *out.parent.glob(f"{OLD}*")):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    draft = Path(mkdtemp(prefix=DRAFT, dir=out.parent))
    try:
        if wrong := contradiction(bundle):  # what could not be used must not take the place of what can
            raise UserError(wrong)
        write_bundle(bundle, draft)
        _replace_folder(draft, out)
    except UserError as error:
        raise MessageError(f"a delivery that makes no bundle ({error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def _replace_folder(draft: Path, out: Path) -> None:
    """Give the draft its name. A crash in between leaves the old folder, the new one, or (for a moment) none: never half of one."""
    old = out.with_name(f"{OLD}{draft.name.removeprefix(DRAFT)}")
    if out.exists():
        out.rename(old)
    draft.rename(out)
    flush(out.parent)
    shutil.rmtree(old, ignore_errors=True)
