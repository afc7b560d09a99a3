"""Inspection: are there groups in these data? Run it before training."""

from coterie.inspect.inspection import Inspection, InspectPlan, inspect_data, run_inspection
from coterie.inspect.pilot import Pilot, PilotPlan

__all__ = ["InspectPlan", "Inspection", "Pilot", "PilotPlan", "inspect_data", "run_inspection"]
