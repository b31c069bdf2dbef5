"""The account of a run adds up, over all stages and sources."""

import json
from typing import Any


def test_what_it_says(workshop: Any) -> None:
    texts = ["gr\u00fc\u00df dich", "two", "two", "<|endoftext|>", "x"]
    sources = [
        {"files": [workshop.jsonl("a.jsonl", texts)], "clean": {"min_chars": 2}, "max_documents": 2},
        {"files": [workshop.jsonl("b.jsonl", ["two", "four"])]},
        {"files": [workshop.jsonl("c.jsonl", ["two"])], "clean": False},
    ]
    workshop.prepare(*sources)
    account = json.loads((workshop.folder / "out" / "report" / "account.json").read_bytes())["sources"]
    assert account["s0"]["clean"] == {
        "documents_in": 5,
        "documents_kept": 3,
        "characters_in": 9 + 3 + 3 + 13 + 1,
        "bytes_in": 11 + 3 + 3 + 13 + 1,
        "characters_kept": 9 + 3 + 13,
        "bytes_kept": 11 + 3 + 13,
        "bad": 0,
        "dropped": {"exact_duplicate": 1, "min_chars": 1},
        "counted": {},
        "removal_rate": {"exact_duplicate": 0.25},
    }
    assert account["s0"]["tokenize"]["dropped"] == {"over_limit": 1}
    assert account["s0"]["tokenize"]["documents_in"] == 3
    assert account["s0"]["tokenize"]["documents_kept"] == 2
    assert account["s0"]["tokenize"]["counted"] == {"control_hits": 1}
    assert account["s1"]["clean"]["characters_kept"] == 4
    assert "clean" not in account["s2"]
    assert account["s2"]["tokenize"]["documents_in"] == 1
    for name, source in account.items():
        shards = next(entry for entry in workshop.manifest()["sources"] if entry["id"] == name)["shards"]
        assert source["tokenize"]["tokens"] == sum(shard["tokens"] for shard in shards)
        assert source["download"] == {"files": 1, "bytes": source["download"]["bytes"]}
