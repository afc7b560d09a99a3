"""What is worth knowing and no reason to stop: a warning in Python, a line on the command line."""


class Notice(UserWarning):
    """One sentence about what was done with what was given."""
