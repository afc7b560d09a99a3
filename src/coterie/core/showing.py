"""Names as a terminal may show them."""


def shown(text: str) -> str:
    """The text with every sign that is not printed (control signs, escape sequences, marks that turn the direction of writing) spelt out.

    The names of clients, classes, files and runs come from data: they must not move a cursor or clear a screen.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode("ascii") for sign in text)
