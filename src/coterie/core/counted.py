"""Numbers of things in words."""


def counted(number: int, thing: str, several: str = "") -> str:
    """``1 seed``, ``3 seeds``, ``2,000 lanes``."""
    return f"{number:,} {thing if number == 1 else several or f'{thing}s'}"
