"""Terminal columns and styles: how wide a text is, the part of it that fits, and how it is drawn in colour.

A text is never wider on a terminal than is counted here, or a row would break. So where terminals differ, the wider
one counts: an emoji that is joined of several, or has a mark that asks for a picture, counts all of its parts.
"""

from __future__ import annotations

_NARROW_BELOW = "\u0300"  # up to here are the letters of the West, each one column wide
_ONE_WIDE = "…█▓▒░–▁▂▃▄▅▆▇"
_PICTURE = "\ufe0f"  # after a character: draw it as an emoji, which is two columns wide
_INVISIBLE = ("\u200b", "\uffff")  # characters that only format the text are not drawn; those of Arabic, before, are
# In Unicode 16 and later, which the running Python may not know.
_NEWLY_WIDE = (("\u2630", "\u2637"), ("\u268a", "\u268f"), ("\u4dc0", "\u4dff"), ("\U0001d300", "\U0001d376"))
_STYLES = {"bold": "1", "dim": "2", "reverse": "7", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_NOT_COLOURS = ("bold", "dim", "reverse")


def cell_width(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii() or all(char < _NARROW_BELOW or char in _ONE_WIDE for char in text):
        return len(text)
    return sum(map(_width, text))


def cut_to_width(text: str, width: int) -> str:
    """The longest beginning of a text that fits into so many columns."""
    used = 0
    for index, char in enumerate(text):
        used += _width(char)
        if used > width:
            return text[:index]
    return text


def styled(text: str, style: str, *, colour: bool) -> str:
    """A text as it is written to a terminal; without colours, only bold, dim and reverse are left of its style."""
    codes = [_STYLES[word] for word in style.split() if colour or word in _NOT_COLOURS]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text


def _width(char: str) -> int:
    if char < _NARROW_BELOW:
        return 1
    from unicodedata import category, east_asian_width

    if east_asian_width(char) in "WF" or any(first <= char <= last for first, last in _NEWLY_WIDE):
        return 2
    kind = category(char)
    if char == _PICTURE or not (kind in ("Mn", "Me") or (kind == "Cf" and _INVISIBLE[0] <= char <= _INVISIBLE[1])):
        return 1
    return 0
