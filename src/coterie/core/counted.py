"""Numbers of things in words."""


def counted(number: int, thing: str, several: str = "") -> str:
    """``1 seed``, ``3 seeds``, ``2,000 lanes``."""
    return f"{number:,} {thing if number == 1 else several or f'{thing}s'}"


def sized(size: float) -> str:
    """``640 MB``, ``4.6 GB``: bytes in thousands of thousands."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 100 * unit else f"{size / unit:,.0f} {name}"
    return f"{size / 1e3:.3g} kB" if size >= 1000 else counted(int(size), "byte")
