#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tree against the map of ARCHITECTURE.md.

    python3 tools/check_layers.py [ROOT]

The levels are read from the map's lines (" L2 kernels/ ..."). Refused are: a file that includes one of a higher level, folders or
files that include each other in a circle, a public header that needs more than public headers, a third-party header outside its
wrapper, #if outside its few places, files of more than 800 lines and functions of more than 60.
"""
import re
import sys
from pathlib import Path

# Header prefix or name -> glob patterns of the files that may include it ("**" is any number of folders).
WRAPPERS = {
    "nlohmann/": ["src/base/json.cc"],
    "spdlog/": ["src/base/log.cc"],
    "fmt/": ["src/**/*", "tests/**/*", "bench/**/*"],   # small (fmt/core.h), and part of base/error.h and base/log.h
    "tl/expected.hpp": ["src/base/error.h"],
    "CLI/": ["src/apps/cli/arguments.cc"],
    "histedit.h": ["src/apps/cli/line_editor.cc"],
    "boost/": ["src/apps/server/http_server.cc"],
    "curl/": ["src/apps/hub/http_transfer.cc", "src/apps/bench_serve/stream_client.cc"],
    "openssl/": ["src/apps/hub/digest.cc"],
    "prometheus/": ["src/apps/server/metrics.cc"],
    "pcre2.h": ["src/text/tokenizer/*.cc"],
    "utf8proc.h": ["src/text/tokenizer/*.cc"],
    "xgrammar/": ["src/text/grammar/xgrammar.cc"],
    "cublasLt.h": ["src/kernels/gemm/cublas_lt_cuda.cu"],
    "dlpack/": ["src/text/grammar/xgrammar.cc"],
    "xxhash.h": ["src/base/*.cc", "src/cache/state_tag.cc"],
    "gtest/": ["src/**/*_test.cc", "src/**/*_test.h", "tests/**/*"],
    "gmock/": ["src/**/*_test.cc", "tests/**/*"],
    "benchmark/": ["src/**/*_bench.cc", "bench/**/*"],
}
# What comes with the compiler and the system; any other name with a dot or a slash is third-party.
SYSTEM = re.compile(r"(sys|linux|netinet|arpa)/\w+\.h|(cpuid|dirent|dlfcn|fcntl|immintrin|netdb|poll|pthread|pwd|sched|signal|spawn|"
                    r"termios|time|ucontext|unistd)\.h|cuda\w*\.h(pp)?|mma\.h")
HEAVY_FMT = {"fmt/format.h", "fmt/ranges.h", "fmt/chrono.h", "fmt/ostream.h", "fmt/std.h"}
CONDITIONALS = ["src/base/cpu_features.*", "src/base/error.h", "src/kernels/op.h", "src/kernels/simd/*"]
SOURCES = {".h", ".cc", ".inl", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".cmake"}
FOLDERS = ("src", "include", "tests", "bench", "examples", "python", "tools", "models", "cmake")
MAX_LINES = 800
MAX_FUNCTION_LINES = 60
NO_FUNCTION = re.compile(r"\s*(namespace|struct|class|enum|union|extern|using|#|//|}|if|for|while|switch|else|do|case|public|private|"
                         r"protected|template <[^>]*>$)\b|\s*[#/}]|\s*$")
PUBLIC = "include/coluber"


def levels_of(map_text):
    """{"base": 0, ..., "apps/cli": 8, ...} from the map. A line without "L<n>" goes on with the level above it."""
    levels, level = {}, None
    for line in map_text.splitlines():
        found = re.match(r" L(\d) (.*)", line)
        if found:
            level, line = int(found[1]), found[2]
        elif level is None or not line.startswith("    "):
            level = None
            continue
        else:
            line = line[4:]
        if line.startswith(" "):
            continue  # goes on with the contents of the folder above
        for number, column in enumerate(re.split(r"\s{2,}", line)):
            folder = re.match(r"([a-z_]+(?:/[a-z_]+)?)/$", column.strip())
            if folder and (number == 0 or "/" in folder[1]):
                levels[folder[1]] = level
    return levels


def module_of(path, levels):
    """The folder of the map that a path below src/ or include/ lies in; None where it lies in none."""
    if path.parts[0] == "include":
        return PUBLIC
    for depth in (2, 1):
        name = "/".join(path.parts[1:1 + depth])
        if len(path.parts) > depth + 1 and name in levels:
            return name
    return None


def matches(path, patterns):
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\*\*/", "(?:[^/]+/)*").replace(r"\*", "[^/]*")
        if re.fullmatch(expression, str(path)):
            return True
    return False


def long_functions(text):
    """(line, number of lines) of functions that are too long. Reads the formatter's layout: a function begins at column 0 or 2 and
    ends with a brace in the same column."""
    found, begun, head = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        if begun is not None:
            if indent == begun[1] and line.lstrip().startswith("}"):
                if number - begun[0] + 1 > MAX_FUNCTION_LINES:
                    found.append((begun[0], number - begun[0] + 1))
                begun = None
            continue
        if not head:
            if indent > 2 or NO_FUNCTION.match(line):
                continue
            first = (number, indent)
        head += line
        if line.endswith("{") and "(" in head:
            begun = first
        if line.endswith(("{", "}", ";", ":", "\\")):
            head = ""
    return found


def circles(edges):
    """The groups of nodes that reach each other (Tarjan's strongly connected components of two nodes or more)."""
    index, low, stack, groups = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                groups.append(group)

    sys.setrecursionlimit(10000)
    for node in sorted(edges):
        if node not in index:
            visit(node)
    return groups


class Tree:
    """One pass over the sources; problems are collected, never thrown."""

    def __init__(self, root):
        self.root = root
        self.problems = []
        self.levels = levels_of((root / "ARCHITECTURE.md").read_text())
        self.file_edges, self.folder_edges, self.example = {}, {}, {}

    def check(self):
        if len(self.levels) < 8:
            return [f"ARCHITECTURE.md: expected the map's levels (lines such as ' L0 base/  ...'), found {sorted(self.levels)}"]
        self.levels[PUBLIC] = -1
        files = sorted(p.relative_to(self.root) for top in FOLDERS for p in (self.root / top).rglob("*")
                       if p.suffix in SOURCES | SCRIPTS and p.is_file())
        for path in files:
            text = (self.root / path).read_text()
            lines = text.count("\n")
            if lines > MAX_LINES:
                self.problems.append(f"{path}: {lines} lines, at most {MAX_LINES}; split it")
            if path.suffix in SOURCES:
                self.check_source(path, text)
        for group in circles(self.file_edges) + circles(self.folder_edges):
            first = min(self.example[a, b] for a in group for b in group if (a, b) in self.example)
            self.problems.append(f"{' and '.join(sorted(group))} include each other in a circle, e.g. at {first}")
        return self.problems

    def check_source(self, path, text):
        module = None
        if path.parts[0] in ("src", "include"):
            module = module_of(path, self.levels)
            if module is None:
                self.problems.append(f"{path}: its folder is not on the map of ARCHITECTURE.md")
        for number, length in long_functions(text):
            self.problems.append(f"{path}:{number}: a function of {length} lines, at most {MAX_FUNCTION_LINES}; split it")
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path}:{number}"
            if re.match(r"\s*#\s*(if|ifdef|ifndef)\b", line) and module and not matches(path, CONDITIONALS):
                self.problems.append(f"{where}: #if belongs to {', '.join(CONDITIONALS)}")
            found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if found and found[1] == "<":
                self.check_system_include(path, where, found[2])
            elif found:
                self.check_own_include(path, module, where, found[2])

    def check_system_include(self, path, where, name):
        wrapper = next((w for w in WRAPPERS if name == w or (w.endswith("/") and name.startswith(w))), None)
        if wrapper:
            if not matches(path, WRAPPERS[wrapper]):
                self.problems.append(f"{where}: <{name}> belongs to {', '.join(WRAPPERS[wrapper])}")
            elif name in HEAVY_FMT and path.suffix == ".h":
                self.problems.append(f"{where}: <{name}> is heavy; a header includes <fmt/core.h> only")
        elif re.search(r"[./]", name) and not SYSTEM.fullmatch(name):
            self.problems.append(f"{where}: <{name}> is third-party and has no wrapper in tools/check_layers.py")

    def check_own_include(self, path, module, where, name):
        below = "include" if name.startswith("coluber/") else "src"
        target = Path(below) / name
        if path.parts[0] == "examples" and (self.root / target).is_file() and below == "src":
            self.problems.append(f'{where}: an example is built against the installed package, which has no "{name}"')
        if module is None:
            return
        if not (self.root / target).is_file():
            self.problems.append(f'{where}: "{name}" is no file below src/ or include/; write the path from there')
            return
        other = module_of(target, self.levels)
        if other is None:
            return  # reported where that file itself is read
        if self.levels[other] > self.levels[module]:
            self.problems.append(f'{where}: {module} (L{self.levels[module]}) includes "{name}" of {other} (L{self.levels[other]})'
                                 if module != PUBLIC else f'{where}: a public header includes "{name}" of src/')
            return  # a circle that this closes needs no second line
        self.add_edge(self.file_edges, str(path), str(target), where)
        if not re.search(r"_(test|bench|fuzz)$", path.stem):
            self.add_edge(self.folder_edges, str(path.parent), str(target.parent), where)

    def add_edge(self, edges, a, b, where):
        if a != b:
            edges.setdefault(a, set()).add(b)
            self.example.setdefault((a, b), where)


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    problems = Tree(root).check()
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(problems)} problems" if problems else "check_layers: the map holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
