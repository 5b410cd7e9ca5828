"""Names of files as text, for JSON and queries. Pure; standard library only.

Linux allows every byte in a name but ``/`` and NUL, JSON only Unicode. So a name is its UTF-8 text, and each byte that is
not part of UTF-8 is written as NUL and two lower-case hexadecimal digits: ``b"caf\\xe9"`` is ``"caf\\u0000e9"`` in JSON and
``caf%00e9`` in a query. NUL is in no name, so nothing is ambiguous, and every name has exactly one text.

In Python, names are `str` with surrogate escapes, as `os.listdir` returns them.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = re.compile("\x00([89a-f][0-9a-f])")
_SURROGATE: Final = re.compile("[\udc80-\udcff]")


def to_text(name: str) -> str:
    """The text of a name with surrogate escapes."""
    return _SURROGATE.sub(lambda match: f"\x00{ord(match[0]) - 0xDC00:02x}", name)


def from_text(text: str) -> str:
    """The name, with surrogate escapes.

    Raises:
        ValueError: no name has this text.
    """
    name = _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), text)
    if "\x00" in name:
        raise ValueError("a NUL is only allowed before the two hexadecimal digits of a byte that is not UTF-8")
    try:
        canonical = name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == name
    except UnicodeEncodeError:
        canonical = False
    if not canonical:
        raise ValueError("bytes that are UTF-8 must be written as their text")
    return name
