"""Running studies: lanes, the driver, conditions, costs, progress."""
