"""Are there groups here at all? What to run before training."""

from coterie.inspect.inspection import Inspection, InspectPlan, inspect_data, run_inspection
from coterie.inspect.pilot import Pilot, PilotPlan

__all__ = ["InspectPlan", "Inspection", "Pilot", "PilotPlan", "inspect_data", "run_inspection"]
