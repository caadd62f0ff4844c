#!/usr/bin/env python3
"""Checks the map of ARCHITECTURE.md: levels, cycles between folders, and third-party includes outside their wrapper.

    python3 tools/check_layers.py [ROOT]

The levels are read from the map's lines ("L2 kernels/ ..."). A file includes only files of its own level or lower ones;
include/coluber lies below everything. A folder that includes another of its own level must not be included by it.
A third-party header may be included by the files named in WRAPPERS only. Files of more than 800 lines are refused.
"""
import re
import sys
from pathlib import Path

# Header prefix or name -> the files (glob patterns below the root) that may include it.
WRAPPERS = {
    "nlohmann/": ["src/base/json.cc"],
    "spdlog/": ["src/base/log.cc"],
    "fmt/": ["src/**/*", "tests/**/*", "bench/**/*"],   # small (fmt/core.h), and part of base/error.h and base/log.h
    "tl/expected.hpp": ["src/base/error.h"],
    "CLI/": ["src/apps/cli/*"],
    "histedit.h": ["src/apps/cli/*"],
    "pcre2.h": ["src/text/tokenizer/*.cc"],
    "utf8proc.h": ["src/text/tokenizer/*.cc"],
    "xxhash.h": ["src/base/*.cc", "src/cache/*.cc"],
    "gtest/": ["src/**/*_test.cc", "src/kernels/op_test.h", "tests/**/*"],
    "gmock/": ["src/**/*_test.cc", "tests/**/*"],
    "benchmark/": ["src/**/*_bench.cc", "bench/**/*"],
}
HEAVY_FMT = {"fmt/format.h", "fmt/ranges.h", "fmt/chrono.h", "fmt/ostream.h"}
SYSTEM = ("sys/", "linux/", "asm/", "netinet/", "arpa/")
SOURCES = {".h", ".cc", ".inl", ".cu", ".cuh"}
MAX_LINES = 800


def levels_of(map_text):
    levels = {}
    for number, folders in re.findall(r"^ L(\d) ([a-z_/ ·]+?)  +", map_text, re.M):
        for folder in re.findall(r"([a-z_]+(?:/[a-z_]+)*)/", folders):
            levels[folder] = int(number)
    for number, folder in re.findall(r"^ L(\d) ([a-z_/]+)/ ", map_text, re.M):
        levels[folder] = int(number)
    return levels


def folder_of(path):
    parts = path.parts
    if parts[0] == "include":
        return "include"
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else "src"
    return parts[0]


def allowed(path, patterns):
    return any(path.match(p) or (p.endswith("/**/*") and str(path).startswith(p[:-4])) or
               ("/**/" in p and str(path).startswith(p.split("/**/")[0] + "/") and Path(path.name).match(p.split("/**/")[1]))
               for p in patterns)


def check(root):
    problems = []
    level = levels_of((root / "ARCHITECTURE.md").read_text())
    if len(level) < 8:
        return ["ARCHITECTURE.md: the map's levels could not be read (found %s)" % sorted(level)]
    level["include"] = -1
    level["api"] = level.get("api", 7)
    edges = {}
    files = [p.relative_to(root) for top in ("src", "include", "tests", "bench", "examples", "python") for p in (root / top).rglob("*")
             if p.suffix in SOURCES and p.is_file()]
    for path in sorted(files):
        text = (root / path).read_text()
        lines = text.count("\n")
        if lines > MAX_LINES:
            problems.append(f"{path}: {lines} lines, at most {MAX_LINES}")
        mine = folder_of(path)
        inside = path.parts[0] in ("src", "include")
        if path.parts[0] == "src" and mine not in level:
            problems.append(f"{path}: folder src/{mine} is not on the map")
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not found:
                continue
            quote, name = found.groups()
            where = f"{path}:{number}"
            wrapper = next((w for w in WRAPPERS if name == w or (w.endswith("/") and name.startswith(w))), None)
            if wrapper:
                if not allowed(path, WRAPPERS[wrapper]):
                    problems.append(f"{where}: <{name}> belongs to {', '.join(WRAPPERS[wrapper])}")
                if name in HEAVY_FMT and path.suffix == ".h":
                    problems.append(f"{where}: <{name}> is heavy; a header includes fmt/core.h only")
                continue
            if quote == "<":
                if "/" in name and not name.startswith(SYSTEM) and not name.startswith("coluber/"):
                    problems.append(f"{where}: <{name}> is third-party and has no wrapper in tools/check_layers.py")
                continue
            target = "include" if name.startswith("coluber/") else name.split("/")[0]
            if target == "apps":
                target = "apps"
            if not inside:
                continue
            if target not in level:
                if "/" in name:
                    problems.append(f"{where}: \"{name}\" is in no folder of the map")
                continue
            if level[target] > level[mine]:
                problems.append(f"{where}: L{level[mine]} {mine} includes L{level[target]} \"{name}\"")
            if mine == "include" and target != "include":
                problems.append(f"{where}: a public header includes \"{name}\" of src")
            if target != mine and not path.name.endswith("_test.cc"):
                edges.setdefault(mine, {}).setdefault(target, where)
    for a in edges:
        for b in edges[a]:
            if a < b and a in edges.get(b, {}):
                problems.append(f"{a} and {b} include each other: {edges[a][b]}, {edges[b][a]}")
    return problems


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(problems)} problems" if problems else "check_layers: the map holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
