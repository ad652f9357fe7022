"""Public keys as text. 40 characters of Z85 stand for the 32 bytes of a key."""

from __future__ import annotations

KEY_CHARACTERS = 40

# https://rfc.zeromq.org/spec/32: five characters stand for four bytes.
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT = {character: digit for digit, character in enumerate(_ALPHABET)}


def key_bytes(text: str) -> bytes | None:
    """Return the 32 bytes of a key in Z85, or `None` if the text is no key."""
    if len(text) != KEY_CHARACTERS or not set(text) <= _DIGIT.keys():
        return None
    words = [_word(text[start : start + 5]) for start in range(0, KEY_CHARACTERS, 5)]
    if max(words) >= 2**32:
        return None
    return b"".join(word.to_bytes(4, "big") for word in words)


def _word(characters: str) -> int:
    value = 0
    for character in characters:
        value = value * len(_ALPHABET) + _DIGIT[character]
    return value


class AllowedKeys(dict[str, str]):
    """An immutable mapping from the names of nodes to their public keys."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))
