"""Documents that come near the thresholds of the families of rules from both sides, the same for every Python."""

import random

# fmt: off
COMMON = [
    "the", "of", "and", "to", "that", "with", "have", "be", "in", "is", "it", "for", "was", "on", "as", "are", "this",
    "by", "not", "from", "they", "we", "his", "but",
]
RARE = [
    "river", "people", "house", "small", "large", "green", "music", "paper", "engine", "north", "seven", "bridge",
    "winter", "letter", "garden", "market", "history", "teacher", "morning", "mountain", "question", "language",
    "computer", "measurement", "understanding", "representation", "l'heure", "don't", "it's", "naïve", "café",
    "Straße", "Ελλάδα", "Москва", "हिन्दी", "東京", "データ", "서울", "ไทย", "3.14", "2024", "x_y", "foo_bar", "C++",
    "#tag", "e-mail", "o\u2019clock", "soft\u00adhyphen",
]
# fmt: on
TAILS = (".", ".", ".", "!", "?", '."', ".'", ")", "", "...", "\u2026", ";", "。", ".)", ":")
ODD = (
    "Lorem ipsum dolor sit amet.",
    "Please enable JavaScript to see this page.",
    "Read our Privacy Policy and the terms of use.",
    "This site uses cooKies all the time.",
    "function main() { return 1; }",
    "The set {1, 2} is small.",
    "Text with a citation.[12] And one more [edit] here [citation needed].",
    "[3]",
    "a" * 1005 + " is one very long word here.",
    "• a point of the list",
    "- another point",
    "###### heading ######",
    "-----------------------------",
    "| a | b | c | d |",
    "",
    "   ",
    "\u3000wide blank\u3000",
    "x\u2028y is a line end of Unicode.",
    "vertical\vtab and form\ffeed are line ends.",
    "carriage\rreturn alone is one.",
    "unit\x1fseparator\x1cfile.",
    "e.g. this has dots. And ends here. Twice!",
)


def sentence(draw: random.Random, vocabulary: list[str]) -> str:
    words = draw.choices(vocabulary, k=draw.randint(1, 14))
    return (" ".join(words).capitalize() + draw.choice(TAILS)).strip()


def document(draw: random.Random) -> str:
    """One document: some lines of some vocabulary, with repeated and odd ones in some measure."""
    rare = draw.sample(RARE, draw.randint(3, len(RARE)))
    vocabulary = [*draw.choices(COMMON, k=draw.randint(0, 40)), *rare, *draw.choices(rare, k=draw.randint(0, 40))]
    if draw.random() < 0.5:
        vocabulary += [f"{draw.choice('bcdfgklmnprst')}{draw.choice('aeiou')}{number}nt" for number in range(200)]
        vocabulary += ["".join(draw.choices("aeioubcdfglmnprst", k=draw.randint(2, 9))) for _ in range(400)]
    repeats, odd, per_line = draw.choice((0, 0, 0.05, 0.3)), draw.choice((0, 0, 0.02, 0.1, 0.4)), draw.randint(1, 6)
    lines: list[str] = []
    for _ in range(draw.choice((1, 2, 5, 10, 30, 80))):
        chance = draw.random()
        if lines and chance < repeats:
            lines.append(draw.choice(lines))
        elif chance < repeats + odd:
            lines.append(draw.choice(ODD))
        else:
            lines.append(" ".join(sentence(draw, vocabulary) for _ in range(draw.randint(1, per_line))))
    gap = draw.choice(("\n", "\n", "\n\n", "\r\n", "\n\n\n"))
    text = gap.join(lines)
    if draw.random() < 0.1:
        text = draw.choice(("- ", "• ", "# ", "... ")) + text.replace("\n", draw.choice(("\n- ", "...\n", "\n#")))
    return text if text.strip() else "blank but for this"


def documents(count: int, seed: int = 7) -> list[str]:
    """So many documents."""
    draw = random.Random(seed)
    return [document(draw) for _ in range(count)]
