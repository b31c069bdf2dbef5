"""Signatures of documents by datatrove, for `bench_near.py`; run by an interpreter that has datatrove.

    PYTHON benchmarks/datatrove_signatures.py FILE (default | regex) MEGABYTES

Prints megabytes of text and the CPU-seconds that shingles and signatures of them took.
"""

import json
import re
import sys
import tempfile
import time

from datatrove.pipeline.dedup.minhash import MinhashDedupSignature


class Regex:
    """A word splitter that costs little."""

    _words = re.compile(r"\w+|[^\w\s]")

    def word_tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return self._words.findall(text)


def main() -> None:
    """Prints the two numbers."""
    path, splitter, megabytes = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        step = MinhashDedupSignature(folder)
        if splitter == "regex":
            step.word_tokenizer = Regex()
        step.get_shingles("a few words to load everything that is loaded once")
        taken, size = 0.0, 0
        with open(path, "rb") as file:
            for line in file:
                text = json.loads(line)["text"]
                size += len(text.encode())
                began = time.process_time()
                shingles = step.get_shingles(text)
                if shingles.size:
                    step.get_signature(shingles)
                taken += time.process_time() - began
                if size > megabytes * 1e6:
                    break
    print(size / 1e6, taken)


if __name__ == "__main__":
    main()
