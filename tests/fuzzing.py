"""Input for readers: something right, with pieces changed into what breaks programs."""

from hypothesis import strategies as st

PIECES = (
    *(b"", b"\x00", b"\xff\xfe", b"\n", b'"', b"'", b"[", b"]", b"{", b"}", b"(", b")", b"=", b",", b":", b".", b"..", b"/", b"-", b"+"),
    *(b"nan", b"inf", b"-1", b"0", b"1e309", b"9" * 25, b"9" * 5000, b"true", b"null", b"[]", b"{}", b'""', b"1.5", b"0x10", b"\xc2\xb2"),
    *(b"[/bold]", b"\x1b[2J", b"os:system('false')", b"../../..", b"a" * 300, b"(" * 200, b"[" * 2000, "ö∞\u202e".encode()),
)


@st.composite
def damaged(draw: st.DrawFn, seed: bytes) -> bytes:
    """The seed with up to four pieces put in, put over, or taken out."""
    content = seed
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        until = at + draw(st.sampled_from((0, 0, 1, 2, 5, 20)))
        content = content[:at] + draw(st.sampled_from(PIECES)) + content[until:]
    return content
