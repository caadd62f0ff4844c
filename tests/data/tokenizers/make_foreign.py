# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of tokenizers that come without a tokenizer.json, with the packages that define them.

    pip install sentencepiece==0.2.3 tiktoken==0.14.0
    python make_foreign.py ../../..        # the repository: its own texts are what the vocabularies are trained on

Writes sp_bpe/, sp_unigram/, sp_user/ (tokenizer.model, cases.json) and tiktoken/ (tiktoken.model, tokenizer_config.json, cases.json).
"""
import base64
import collections
import io
import json
import pathlib
import random
import sys

import sentencepiece as spm
import tiktoken

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(sys.argv[1])

KIMI = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])

TEXTS = [
    "", " ", "  ", "   x", "x   ", " a  b ", "\n", "\n\n", "\t", "\r\n", "a\nb\n\nc", "Hello, world!", "hello  world", "The quick brown fox.",
    "I'm you're we've they'll he'd it's DON'T I'M", "camelCaseWords and snake_case_words", "3.14159 1234567890 0x1F 10,000", "a" * 70,
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m", "e\u0301 combining A\u030a", "\uff21\uff22\uff23 \uff11\uff12\uff13", "\ufb01ne \u2460 \u00bd \u2122",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "abc\u4e2d\u6587def \u6f22\u5b57 123",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467", "zero\u200bwidth", "nbsp\u00a0here", "\u3000ideographic", "tab\tseparated\tvalues",
    "def f(x):\n    return x ** 2  # square\n", "{\"key\": [1, 2, {\"a\": null}]}", "<div class=\"a\">&amp;</div>", "https://example.com/a?b=c&d=%20",
    "\u2581literal\u2581metaspace", "a\u2581b", "\x00\x01\x7f", "\ufeffbom", "\ufffd", "\U0010ffff", "!!!???...---", "ALL CAPS TEXT", "MiXeD CaSe",
    "the the the the", "state space model recurrent attention layer", "aaaa bbbb cccc", "ab" * 40, "x " * 30,
]


def texts():
    rng = random.Random(7)
    words = [w for t in TEXTS for w in t.split(" ") if w] + [" ", "  ", "\n", "\t", "\u3000", "."]
    more = ["".join(rng.choice(words) + rng.choice(["", " ", "  ", "\n", "-"]) for _ in range(rng.randrange(2, 12))) for _ in range(60)]
    pool = "abc xyz  \u00e9\u4e2d\u0416\U0001f600\u0301'\n\t12."
    more += ["".join(rng.choice(pool) for _ in range(rng.randrange(1, 30))) for _ in range(60)]
    return TEXTS + more


def corpus():
    for path in sorted(ROOT.glob("**/*.md")):
        if "build" in str(path):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield line[:400]
    yield from (t for t in TEXTS if t.strip() and "\x00" not in t)


def case(text, ids, decode, special):
    plain = [i for i in ids if i not in special]
    return {"text": text, "ids": ids, "ids_with_special": ids, "decoded": decode(ids), "decoded_skip_special": decode(plain)}


def write_cases(folder, cases):
    (folder / "cases.json").write_text(json.dumps({"cases": cases}, ensure_ascii=True, indent=0))


def sentencepiece_fixture(name, **options):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=corpus(), model_writer=model, minloglevel=2, num_threads=1,
                                   unk_surface="<unk>", **options)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    processor = spm.SentencePieceProcessor(model_proto=model.getvalue())
    write_cases(folder, [case(text, processor.encode(text), processor.decode, {0, 1, 2}) for text in texts()])


def tiktoken_fixture(name, size):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    ranks = {bytes([b]): b for b in range(256)}
    import regex
    words = collections.Counter(m.encode() for line in corpus() for m in regex.findall(KIMI, line, regex.V1))
    split = {w: [bytes([b]) for b in w] for w in words}
    while len(ranks) < size:  # plain byte-pair training
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(split[word], split[word][1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda p: (pairs[p], p))
        joined = best[0] + best[1]
        ranks[joined] = len(ranks)
        for word, parts in split.items():
            i, out = 0, []
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    out.append(joined)
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            split[word] = out
    (folder / "tiktoken.model").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    special = {size: "[BOS]", size + 1: "[EOS]", size + 2: "<|im_end|>", size + 3: "<|im_user|>"}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "clean_up_tokenization_spaces": False,
              "added_tokens_decoder": {str(i): {"content": t, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
                                                "single_word": False} for i, t in special.items()}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    tokens = {special.get(i, f"<|reserved_token_{i}|>"): i for i in range(size, size + 256)}
    encoding = tiktoken.Encoding(name, pat_str=KIMI, mergeable_ranks=ranks, special_tokens=tokens)
    more = ["[BOS]hi<|im_end|>there[EOS]", f"a<|reserved_token_{size + 9}|>b", "<|im_user|>"]
    write_cases(folder, [case(text, encoding.encode(text, allowed_special="all"), encoding.decode, tokens.values())
                         for text in texts() + more])


if __name__ == "__main__":
    sentencepiece_fixture("sp_bpe", model_type="bpe", vocab_size=900, character_coverage=0.98, byte_fallback=True,
                          normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                          allow_whitespace_only_pieces=True)
    sentencepiece_fixture("sp_unigram", model_type="unigram", vocab_size=700, character_coverage=0.98)
    sentencepiece_fixture("sp_user", model_type="unigram", vocab_size=700, character_coverage=0.98, byte_fallback=True,
                          normalization_rule_name="identity", user_defined_symbols=["model", "<sep>", "\n\n"], add_dummy_prefix=False)
    tiktoken_fixture("tiktoken", 900)
