"""The hostile strings: fixed, broad, and able to find a difference."""

import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from gristmill.tokenize.probe import first_difference, probe_texts


def test_the_strings_are_the_same_in_every_process() -> None:
    script = (
        "import hashlib; from gristmill.tokenize.probe import probe_texts\n"
        "print(hashlib.sha256(repr(probe_texts(['<s>'])).encode('utf-8', 'surrogatepass')).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_they_cover_every_byte_of_utf_8_and_every_class_of_character() -> None:
    texts = probe_texts()
    data = "".join(texts).encode("utf-8")
    assert set(data) == set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert {unicodedata.category(character) for text in texts for character in text} >= {
        *("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
        *("Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"),
    }
    assert len(data) < 300_000
    assert "" in texts


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>"])
def test_control_spellings_come_alone_and_inside_text(token: str) -> None:
    texts = probe_texts([token])
    assert {token, f"a{token}b", token + token, token[:-1]} <= set(texts)


def test_many_control_spellings_do_not_blow_it_up() -> None:
    assert len(probe_texts([f"<|{number}|>" for number in range(10_000)])) < len(probe_texts()) + 1000


def flat(*lists: list[int]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return np.array([number for ids in lists for number in ids], np.uint32), offsets


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (flat([1], [2, 3]), flat([1], [2, 3]), None),
        (flat([1], [2, 3]), flat([1], [2, 4]), (1, [2, 3], [2, 4])),
        (flat([1, 2], [3]), flat([1], [2, 3]), (0, [1, 2], [1])),
        (flat([1], [2], [3]), flat([1], [2], []), (2, [3], [])),
        (flat(), flat(), None),
    ],
)
def test_the_first_difference_is_found(first: object, second: object, expected: object) -> None:
    assert first_difference(first, second) == expected  # type: ignore[arg-type]  # parametrised as plain objects
