"""Checks of the settings that several models share."""

from coterie._util.errors import UserError


def check_counts(model: str, **counts: object) -> None:
    """Refuse a width, depth or number of outputs that is not a whole number of at least one."""
    for name, count in counts.items():
        # bool is an int to Python, but `mlp(true)` is a slip
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UserError(f"Model {model!r}: {name}={count!r} should be a whole number of at least 1.")
