"""Makes `megatron_pair.*` with megatron-core: a JSON lines file, a tokenizer, and the pair that Megatron makes of them.

Run it in an environment that has the extras `parity` and `prepare`:

    python tests/golden/make_pair.py

Megatron's `tools/preprocess_data.py --append-eod` is no part of the package; what it does for each line is: the ids of
the text, one end-of-document id behind them, and `add_document` of its `IndexedDatasetBuilder`, whose dtype follows
from the size of the vocabulary. Documents without text are left out here: Megatron keeps them, without tokens.
"""

import json
import random
from pathlib import Path

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FOLDER = Path(__file__).parent
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the"), ("i", "n"), ("e", "r"), ("o", "n"), ("Ġ", "d")]
MERGES += [("Ġd", "o"), ("Ã", "©"), ("0", "0"), ("00", "00"), ("Ġ", "Ġ"), ("Ċ", "Ċ")]
WORDS = ["the", "a", "an", "other", "documents", "in", "on", "0000", "100", "é", "世界", "🙂", "\t", "\n\n", "def", ""]
WORDS += ["f(x):", "\u2028", "\x00", "naïve"]


def main() -> None:
    """Writes the four files."""
    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["".join(merge) for merge in MERGES]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(FOLDER / "megatron_pair_tokenizer.json"))

    rng = random.Random(1234)
    documents = [" ".join(rng.choices(WORDS, k=rng.choice([1, 2, 3, 10, 50]))) + str(number) for number in range(100)]
    with open(FOLDER / "megatron_pair.jsonl", "w", encoding="utf-8") as file:
        for number, text in enumerate(documents):
            file.write(json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0) + "\n")

    eod = tokenizer.token_to_id("<|endoftext|>")
    builder = IndexedDatasetBuilder(
        str(FOLDER / "megatron_pair.bin"), dtype=DType.optimal_dtype(tokenizer.get_vocab_size())
    )
    for text in documents:
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, eod]
        builder.add_document(ids, [len(ids)])
    builder.finalize(str(FOLDER / "megatron_pair.idx"))


if __name__ == "__main__":
    main()
