# SPDX-License-Identifier: Apache-2.0
"""Writes python_unicode_tables.inl from the Unicode data of the Python that runs it: python3 make_unicode_tables.py > FILE"""
import sys

LIMIT = 0x110000
CHARS = [chr(c) for c in range(LIMIT)]


def ranges(test):
    out, start = [], None
    for c in range(LIMIT):
        if test(CHARS[c]):
            if start is None:
                start = c
        elif start is not None:
            out.append((start, c - 1))
            start = None
    if start is not None:
        out.append((start, LIMIT - 1))
    return out


def emit(name, rows, kind, size):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        word = " {" + ", ".join(f"0x{v:x}" if v >= 10 else str(v) for v in row) + "},"
        if len(line) + len(word) > 118:
            print(line)
            line = "   "
        line += word
    print(line)
    print("};")


def mapping(convert):
    return runs([(c, ord(convert(CHARS[c])) - c) for c in range(LIMIT) if len(convert(CHARS[c])) == 1 and convert(CHARS[c]) != CHARS[c]])


def title_mapping():
    """Only where it differs from the upper case; the distance may be 0."""
    return runs([(c, ord(t) - c) for c, t in enumerate(map(str.title, CHARS)) if len(t) == 1 and t != CHARS[c].upper()])


def runs(pairs):
    """Runs of characters that map to one character at a constant distance, with step 1 or 2."""
    rows = []
    for c, delta in pairs:
        if rows:
            first, last, step, d = rows[-1]
            if d == delta and (c - last == step or (first == last and c - last <= 2)):
                rows[-1] = (first, c, c - last, d)
                continue
        rows.append((c, c, 1, delta))
    return rows


def expansions(convert):
    rows = []
    for c in range(LIMIT):
        to = convert(CHARS[c])
        if len(to) > 1:
            rows.append((c, *([ord(x) for x in to] + [0, 0])[:3]))
    return rows


print("// SPDX-License-Identifier: Apache-2.0")
print("// Made by make_unicode_tables.py; included by python_unicode.cc alone.")
print("// clang-format off")
emit("kAlpha", ranges(str.isalpha), "Range", 2)
emit("kDecimal", ranges(str.isdecimal), "Range", 2)
emit("kDigit", ranges(lambda c: c.isdigit() and not c.isdecimal()), "Range", 2)
emit("kNumeric", ranges(lambda c: c.isnumeric() and not c.isdigit()), "Range", 2)
emit("kUnprintable", ranges(lambda c: not c.isprintable()), "Range", 2)
emit("kLowerOnly", ranges(lambda c: c.islower() and (len(c.upper()) != 1 or c.upper() == c)), "Range", 2)
emit("kNotLower", ranges(lambda c: not c.islower() and len(c.upper()) == 1 and c.upper() != c), "Range", 2)
emit("kUpperOnly", ranges(lambda c: c.isupper() and (len(c.lower()) != 1 or c.lower() == c)), "Range", 2)
emit("kNotUpper", ranges(lambda c: not c.isupper() and len(c.lower()) == 1 and c.lower() != c), "Range", 2)
emit("kUpperMap", mapping(str.upper), "Mapping", 4)
emit("kLowerMap", mapping(str.lower), "Mapping", 4)
emit("kTitleMap", title_mapping(), "Mapping", 4)
emit("kUpperExpansion", expansions(str.upper), "Expansion", 4)
emit("kTitleExpansion", expansions(str.title), "Expansion", 4)
sys.stdout.flush()
