"""Whether the parts of a bundle fit together."""

from math import prod

import numpy as np
import torch

from coterie.core.arrays import Ints
from coterie.core.parameters import layout_of, torch_seeded
from coterie.core.serving import COMBINED, Combiner, Mixture
from coterie.core.specs import parse
from coterie.deploy.bundle import Bundle
from coterie.methods.combiners import AccuracyGate, ByRow, Online, OwnExpert
from coterie.models.catalogue import build_model


def contradiction(bundle: Bundle) -> str | None:
    """What does not fit together, if anything."""
    models, k, width = bundle.models, len(bundle.names), prod(bundle.input_shape)
    if models.ndim != 2 or models.dtype != np.float32 or len(models) != k:
        return f"{k} names and models of shape {models.shape} and type {models.dtype}"
    if models.shape[1] != (size := _size(bundle)):
        return f"models of {models.shape[1]:,} numbers where {bundle.model!r} has {size:,}"
    rows = list(bundle.clients.values())
    if not all(COMBINED <= row < k for row in rows) or (COMBINED in rows and bundle.combiner is None):
        return f"clients are served models that are not among its {k}"
    texts = bundle.task.name == "next-token"
    classes = bundle.input_shape[0] - 1 if texts else len(bundle.classes)  # of a block, tokens that are predicted
    combined = np.flatnonzero(np.array(rows, dtype=np.int64) == COMBINED)
    if len(combined):
        assert bundle.combiner is not None
        shape = np.shape(bundle.combiner.combine(np.full((k, 1, classes), 1 / classes), int(combined[0])))
        if shape != (1, classes):
            return f"its combiner gives scores of shape {shape} for {classes} {'tokens' if texts else 'classes'}"
        if not _fits(bundle.combiner, k, classes, combined):
            return f"its combiner does not answer for all of its {len(combined)} clients"
    if bundle.several is not None and bundle.input_shape != (bundle.several.width,):
        return f"inputs of {bundle.several.width} numbers where the model takes {bundle.input_shape}"
    if bundle.features is not None and len(bundle.features) != width:
        return f"{len(bundle.features)} features named where the model takes {width}"
    if bundle.preparation is not None and bundle.preparation.features != bundle.features:
        return "a preparation that makes other features than it names"
    if bundle.schema is not None and (wrong := _contradicting_schema(bundle)):
        return wrong
    if bundle.worded is not None and bundle.worded.wording.shape != bundle.input_shape:
        return "texts that become other features than the model takes"
    if bundle.blocked is not None and (not texts or bundle.input_shape != (bundle.blocked.length + 1,)):
        return "texts that are cut into other blocks than the model takes"
    if any(len(s.mean) != width or len(s.deviation) != width for s in bundle.scaling.values()):
        return f"a scaling that is not of {width} features"
    return None


def _contradicting_schema(bundle: Bundle) -> str | None:
    schema = bundle.schema
    assert schema is not None
    if (schema.classes, schema.shape, schema.task) != (bundle.classes, bundle.input_shape, bundle.task.name):
        return "a schema of other classes, samples or labels than it names"
    if not any(column.kind == "text" for column in schema.columns) and schema.features != bundle.features:
        return "a schema of other features than it names"
    return None


def _fits(combiner: Combiner | None, k: int, classes: int, places: Ints) -> bool:
    """Whether a combiner has what it needs for clients at these places, seen from its arrays: there may be any number of clients."""
    match combiner:
        case Mixture(weights):
            return weights.ndim == 2 and weights.shape[1] == k and bool((places < len(weights)).all())
        case OwnExpert(experts):
            known = experts.ndim == 1 and experts.dtype.kind in "iu" and bool((places < len(experts)).all())
            return known and bool(((experts[places] >= 0) & (experts[places] < k)).all())
        case AccuracyGate(weights):
            return weights.shape == (k, classes)
        case Online():
            return combiner.weights is None or combiner.weights.shape == (k, classes)
        case ByRow(combiners):
            inside = bool((places < len(combiners)).all())
            return inside and all(_fits(combiners[place], k, classes, places[at : at + 1]) for at, place in enumerate(places.tolist()))
    return combiner is not None


def _size(bundle: Bundle) -> int:
    """The length of the model's vector, found without making room for it: a wrong spec may be of any size."""
    own = ":" in parse(bundle.model).name
    with torch.device("cpu" if own else "meta"), torch_seeded(0):
        return layout_of(build_model(bundle.model, bundle.several or bundle.input_shape, len(bundle.classes))).size
