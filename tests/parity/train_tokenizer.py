# SPDX-License-Identifier: Apache-2.0
"""train_tokenizer.py WEFT DIR: `weft data train-tokenizer` beside PyPI's `tokenizers` on the same documents:
the same vocabulary and merges, a file that it opens, the same ids. Says how long both took."""
import json
import pathlib
import random
import subprocess
import sys
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL = "<|endoftext|>"


def documents():
    """Licences, and letters of many scripts in runs that overlap and in equal numbers."""
    texts = [f.read_text() for f in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()) if f.is_file()]
    draw = random.Random(11)
    letters = "aaaab  \n\t'sté日本語кот😀🏽\u0301٣½﷽\r\x00" + SPECIAL
    texts += ["".join(draw.choices(letters, k=draw.randint(0, 400))) for _ in range(3000)]
    words = " ".join(texts[:10]).split()
    return texts + [" ".join(draw.choices(words, k=200)) for _ in range(20000)]


def main():
    weft, place = sys.argv[1], pathlib.Path(sys.argv[2])
    texts = documents()
    place.mkdir(exist_ok=True)
    lines = place / "in.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for vocab in (300, 3000, 20000):
        out = place / f"{vocab}.json"
        began = time.monotonic()
        subprocess.run([weft, "data", "train-tokenizer", str(lines), "--vocab", str(vocab), "--out", str(out)], check=True)
        ours = time.monotonic() - began
        peer = Tokenizer(models.BPE())
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        began = time.monotonic()
        peer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=[SPECIAL], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
        theirs = time.monotonic() - began
        a, b = json.loads(peer.to_str())["model"], json.loads(out.read_text())["model"]
        assert a["vocab"] == b["vocab"], vocab
        assert [m if isinstance(m, str) else " ".join(m) for m in a["merges"]] == b["merges"], vocab
        opened = Tokenizer.from_file(str(out))
        for text in texts[:500]:
            plain = text.replace(SPECIAL, "")
            assert opened.encode(plain).ids == peer.encode(plain).ids
        print(f"{len(a['vocab'])} tokens, {len(a['merges'])} merges: the same; {ours:.2f} s, tokenizers {theirs:.2f} s")


main()
