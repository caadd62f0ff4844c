#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes components.json: small tokenizers, one for each component and option, with what PyPI's `tokenizers` makes of some texts.

Run it with a version to follow (pip install tokenizers) and commit the result; component_test.cc reads it.
"""
import json
import os
import struct

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models as M
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as X

TEXTS = [
    "", " ", "\n", "Hello world", "  two  spaces ", "don't WE'LL it'\u017f", "caf\u00e9 cafe\u0301 \ufb01 \u2460 \u00bd",
    "line\r\nbreak\n\n  x", "123 45678 \u0663\u0664 \u2167", "a_b-c!? (x) \u00bfq?", "\u6f22\u5b57 \ud55c\uad6d \u0e44\u0e17\u0e22",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "\u2581under\u2581score", "<s> <tool> a<tool>b  <mask>  x <r>   y",
    "Stra\u00dfe \u0130\u01c5 \u1e00\u0327\u0323", "tab\tnbsp\u00a0zw\u200bls\u2028x\u3000y", "\x00\x01\x7f\ufffd\ufeff", "x" * 40,
    "the cat sat on the mat.", "THE Cat", "unaffable words",
]


def charsmap():
    """A tiny precompiled map: A -> a, e + acute -> e with acute, B -> nothing."""
    keys = {b"A": b"a", "e\u0301".encode(): "\u00e9".encode(), b"B": b""}
    texts, offsets = b"", {}
    for key, value in keys.items():
        offsets[key] = len(texts)
        texts += value + b"\0"
    units = [None] * 1024

    def build(prefix, node):
        labels = sorted({key[len(prefix)] for key in keys if key.startswith(prefix) and len(key) > len(prefix)})
        leaf = prefix in keys
        slots = ([0] if leaf else []) + labels
        base = next(b for b in range(256, 1024) if all((b ^ s) < 1024 and units[b ^ s] is None for s in slots))
        units[node] = (units[node] or 0) | ((node ^ base) << 10) | (256 if leaf else 0)
        for slot in slots:
            units[base ^ slot] = slot
        if leaf:
            units[base] = offsets[prefix] | 1 << 31
        for label in labels:
            build(prefix + bytes([label]), base ^ label)

    units[0] = 0
    build(b"", 0)
    raw = b"".join(struct.pack("<I", unit or 0) for unit in units)
    return struct.pack("<I", len(raw)) + raw + texts


def alphabet(extra=()):
    chars = sorted(set("".join(TEXTS)) | set("#\u0301\u0327\u0323\u030a") | set(extra))
    return {char: i + 3 for i, char in enumerate(chars)}


def char_model(**options):
    """A BPE model over single characters with a few merges, so that every change of the text shows in the ids."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **alphabet()}
    merges = []
    for left, right in [("t", "h"), ("th", "e"), ("c", "a"), ("ca", "t"), ("\u2581", "t"), ("x", "x"), ("xx", "xx"), ("l", "l")]:
        vocab.setdefault(left + right, len(vocab))
        merges.append((left, right))
    return M.BPE(vocab, merges, unk_token="<unk>", **options)


def byte_model(**options):
    letters = sorted(P.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{letter: i + 3 for i, letter in enumerate(letters)}}
    merges = []
    for left, right in [("t", "h"), ("th", "e"), ("\u0120", "the"), ("c", "a"), ("ca", "t"), ("x", "x"), ("xx", "xx"), ("\u00c3", "\u00a9")]:
        vocab.setdefault(left + right, len(vocab))
        merges.append((left, right))
    vocab["hello"] = len(vocab)
    vocab["Hello"] = len(vocab)
    return M.BPE(vocab, merges, **options)


def build(model, normalizer=None, pre=None, post=None, decoder=None, added=True):
    tokenizer = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre), ("post_processor", post), ("decoder", decoder)):
        if part is not None:
            setattr(tokenizer, name, part)
    if added:
        tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True), AddedToken("<r>", rstrip=True, normalized=True)])
        tokenizer.add_tokens([AddedToken("<tool>", single_word=True), AddedToken("caf\u00e9", normalized=True)])
    return tokenizer


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def entries():
    for normalizer in [N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Lowercase(), N.Strip(), N.Strip(left=True, right=False), N.StripAccents(),
                       N.Sequence([N.NFD(), N.StripAccents()]), N.Nmt(), N.Prepend("\u2581"), N.Replace("a", "xx"), N.Replace(" ", ""),
                       N.Replace(Regex(r"\s+"), " "), N.BertNormalizer(), N.BertNormalizer(lowercase=False, strip_accents=True),
                       N.Precompiled(charsmap()), N.Sequence([N.Strip(), N.Prepend("\u2581"), N.Replace(" ", "\u2581")])]:
        yield f"normalizer {normalizer}", build(char_model(), normalizer)
    yield "normalizer ByteLevel", build(byte_model(), N.ByteLevel(), decoder=D.ByteLevel())
    for behavior in BEHAVIORS:
        yield f"punctuation {behavior}", build(char_model(fuse_unk=True), pre=P.Punctuation(behavior))
        yield f"split text {behavior}", build(M.WordLevel({"[UNK]": 0, "the": 1, "the ": 2, " the": 3, " ": 4, "  ": 5, "cat": 6}, "[UNK]"), pre=P.Split(" ", behavior))
        yield f"split inverted {behavior}", build(M.WordLevel({"[UNK]": 0, "the": 1, " ": 2, "cat": 3}, "[UNK]"), pre=P.Split(Regex(r"\w+"), behavior, invert=True))
    words = M.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "Hello": 3, "a_b": 4, "123": 5, ".": 6, "!?": 7, "x": 8, "-": 9, "1": 10, "un": 11}, "[UNK]")
    for pre in [P.Whitespace(), P.WhitespaceSplit(), P.BertPreTokenizer(), P.Digits(True), P.Digits(False), P.CharDelimiterSplit("e"),
                P.Sequence([P.Whitespace(), P.Digits(True)]), P.Split(Regex(r"\b"), "isolated"), P.Split(Regex(r"^\s*|\s+$"), "removed"),
                P.Split(Regex(r"[[:punct:]]|\h{2}"), "isolated"), P.Split(Regex(r"\p{N}{1,2}+"), "isolated")]:
        yield f"pre-tokenizer {pre}", build(words, pre=pre)
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"metaspace {scheme} {split}", build(char_model(), N.Strip(), P.Metaspace("\u2581", scheme, split), decoder=D.Metaspace("\u2581", scheme, split))
    for name, pattern in [("llama3", LLAMA3), ("qwen", LLAMA3.replace("{1,3}", "")), ("o200k", O200K), ("han", HAN)]:
        pre = P.Sequence([P.Split(Regex(pattern), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
        yield f"byte level {name}", build(byte_model(ignore_merges=name == "llama3"), pre=pre, decoder=D.ByteLevel())
    for space in (True, False):
        yield f"byte level gpt2 {space}", build(byte_model(), pre=P.ByteLevel(add_prefix_space=space), decoder=D.ByteLevel(),
                                                post=X.RobertaProcessing(("</s>", 2), ("<s>", 1)))
    yield "bpe unknown", build(char_model(), pre=P.Split("\u6f22", "removed"), decoder=D.Fuse())
    small = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "##a": 4, "t": 5, "##t": 6, "##t</w>": 7, "c": 8, "ca": 9, "cat</w>": 10, "t</w>": 11, "h": 12}
    yield "bpe affixes", build(M.BPE(small, [("c", "##a"), ("ca", "##t</w>")], unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                               pre=P.WhitespaceSplit(), decoder=D.BPEDecoder("</w>"))
    fallback = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{i:02X}>": i + 3 for i in range(256)}, "\u2581": 259, "a": 260, "t": 261, "h": 262, "\u2581t": 263}
    for fuse in (True, False):
        yield f"bpe byte fallback {fuse}", build(M.BPE(fallback, [("\u2581", "t")], unk_token="<unk>", byte_fallback=True, fuse_unk=fuse), N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]),
                                                 decoder=D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]))
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("\u2581", -3.0), ("\u2581the", -2.0), ("t", -4.0), ("h", -4.5), ("e", -4.2), ("\u2581cat", -2.5), ("at", -3.5), ("a", -4.1), ("o", -4.4), ("xx", -5.0), ("x", -2.5)]
    yield "unigram", build(M.Unigram(pieces, 0, False), pre=P.Metaspace(), decoder=D.Metaspace(), post=X.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)]))
    yield "unigram bytes", build(M.Unigram(pieces + [(f"<0x{i:02X}>", -9.0) for i in range(256)], 0, True), N.NFKC(), P.Metaspace("\u2581", "first", False), decoder=D.Sequence([D.ByteFallback(), D.Metaspace()]))
    wordpiece = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "un": 4, "##aff": 5, "##able": 6, "words": 7, "cat": 8, "##s": 9, "s": 10, "##at": 11, "x": 12, "##x": 13, ".": 14, "mat": 15, "on": 16}
    yield "wordpiece", build(M.WordPiece(wordpiece, unk_token="[UNK]", max_input_chars_per_word=30), N.BertNormalizer(), P.BertPreTokenizer(), X.BertProcessing(("[SEP]", 2), ("[CLS]", 1)), D.WordPiece())
    yield "wordpiece plain", build(M.WordPiece(wordpiece, unk_token="[UNK]"), pre=P.Whitespace(), decoder=D.WordPiece("##", False))
    yield "ctc", build(char_model(), decoder=D.CTC(pad_token="x", word_delimiter_token=" "))
    yield "no decoder", build(char_model(), post=X.Sequence([X.ByteLevel(), X.TemplateProcessing(single="<s> $A </s> <s>", special_tokens=[("<s>", 1), ("</s>", 2)])]))
    yield "strip and replace", build(char_model(), decoder=D.Sequence([D.Fuse(), D.Strip("x", 2, 0), D.Replace(Regex("a|e"), "_")]))


def main():
    out = []
    for name, tokenizer in entries():
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            special = tokenizer.encode(text).ids
            cases.append({"text": text, "ids": ids, "ids_with_special": special, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                          "decoded_skip_special": tokenizer.decode(special, skip_special_tokens=True)})
        out.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "components.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"tokenizers": tokenizers.__version__, "entries": out}, file, separators=(",", ":"))
        file.write("\n")
    print(f"{len(out)} tokenizers, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
