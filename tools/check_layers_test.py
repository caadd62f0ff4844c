#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py: each breach of the map is found in a small tree, and a tree that keeps to it passes."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_layers import Tree, levels_of  # noqa: E402

MAP = """# Map
```
src/
 L0 base/          error · log
 L1 tensor/        buffer · nowhere/ is part of a description
 L2 kernels/       one folder per family: conv/ scan/
 L2 text/          tokenizer/
 L3 cache/         page_pool
 L4 layers/        norm
 L5 models/        one file per family
 L6 engine/        runner
 L8 apps/cli/      main    apps/server/   http · openai/
    apps/conformance/    apps/bench_ops/
python/            module
```
"""
CLEAN = {
    "include/coluber/error.h": "#include <string>\n",
    "src/base/error.h": '#include <fmt/core.h>\n#include "coluber/error.h"\n',
    "src/tensor/buffer.h": '#include "base/error.h"\n',
    "src/kernels/conv/conv.cc": '#include "tensor/buffer.h"\n#include <unistd.h>\n',
    "src/apps/cli/main.cc": '#include "tensor/buffer.h"\n#include "coluber/error.h"\n',
    "src/tensor/buffer_test.cc": '#include <gtest/gtest.h>\n#include "tensor/buffer.h"\n',
}


class CheckLayers(unittest.TestCase):
    def problems(self, extra=None):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "ARCHITECTURE.md").write_text(MAP)
            for name, text in {**CLEAN, **(extra or {})}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return Tree(root).check()

    def assert_found(self, extra, *words):
        problems = self.problems(extra)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_levels_come_from_the_map(self):
        self.assertEqual(levels_of(MAP), {
            "base": 0, "tensor": 1, "kernels": 2, "text": 2, "cache": 3, "layers": 4, "models": 5, "engine": 6,
            "apps/cli": 8, "apps/server": 8, "apps/conformance": 8, "apps/bench_ops": 8})

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.problems(), [])

    def test_an_upward_include_is_found(self):
        self.assert_found({"src/tensor/up.cc": '#include "kernels/conv/conv.cc"\n'}, "src/tensor/up.cc:1", "kernels (L2)")

    def test_an_upward_include_of_a_test_is_found(self):
        self.assert_found({"src/tensor/up_test.cc": '#include "kernels/conv/conv.cc"\n'}, "src/tensor/up_test.cc:1")

    def test_folders_that_include_each_other_are_found(self):
        self.assert_found({"src/text/a.h": '#include "kernels/conv/b.h"\n', "src/kernels/conv/b.h": "",
                           "src/kernels/conv/c.h": '#include "text/d.h"\n', "src/text/d.h": ""},
                          "src/kernels/conv and src/text include each other")

    def test_a_circle_through_three_folders_is_found(self):
        self.assert_found({"src/text/a.h": '#include "kernels/conv/b.h"\n', "src/kernels/conv/b.h": "",
                           "src/kernels/conv/c.h": '#include "kernels/scan/d.h"\n', "src/kernels/scan/d.h": "",
                           "src/kernels/scan/e.h": '#include "text/f.h"\n', "src/text/f.h": ""},
                          "src/kernels/conv and src/kernels/scan and src/text")

    def test_headers_that_include_each_other_are_found(self):
        self.assert_found({"src/base/a.h": '#include "base/b.h"\n', "src/base/b.h": '#include "base/a.h"\n'},
                          "src/base/a.h and src/base/b.h")

    def test_a_third_party_header_outside_its_wrapper_is_found(self):
        self.assert_found({"src/base/log.h": "#include <spdlog/spdlog.h>\n"}, "src/base/log.h:1", "src/base/log.cc")

    def test_a_third_party_header_without_a_wrapper_is_found(self):
        for name in ("dnnl.h", "zstd.h", "archive.h"):
            self.assert_found({"src/base/zip.cc": f"#include <{name}>\n"}, name, "has no wrapper")

    def test_a_heavy_header_of_fmt_in_a_header_is_found(self):
        self.assert_found({"src/base/print.h": "#include <fmt/ranges.h>\n"}, "heavy")

    def test_a_public_header_that_needs_the_inside_is_found(self):
        self.assert_found({"include/coluber/engine.h": '#include "base/error.h"\n'}, "a public header")

    def test_an_example_that_needs_the_inside_is_found(self):
        self.assert_found({"examples/mine/main.cc": '#include "base/error.h"\n'}, "installed package")

    def test_a_file_of_801_lines_is_found_and_one_of_800_is_not(self):
        self.assert_found({"src/base/long.cc": "\n" * 801}, "src/base/long.cc: 801 lines")
        self.assertEqual(self.problems({"src/base/long.cc": "\n" * 800}), [])

    def test_a_function_of_61_lines_is_found_and_one_of_60_is_not(self):
        for head in ("int f() {", "std::vector<int> f(int a,\n                   int b) {", "class A {\n  int f() const {"):
            indent = "  " if head.startswith("class") else ""
            lines = 60 - head.removeprefix("class A {\n").count("\n")
            body = indent + "  g();\n"
            end = indent + "}\n" + ("};\n" if indent else "")
            self.assert_found({"src/base/f.cc": head + "\n" + body * (lines - 1) + end}, "a function of 61 lines")
            self.assertEqual(self.problems({"src/base/f.cc": head + "\n" + body * (lines - 2) + end}), [])

    def test_a_folder_that_is_not_on_the_map_is_found(self):
        self.assert_found({"src/util/strings.h": ""}, "src/util/strings.h", "not on the map")

    def test_an_include_that_does_not_start_at_the_source_folder_is_found(self):
        self.assert_found({"src/base/near.cc": '#include "error.h"\n'}, "src/base/near.cc:1", "no file below src/")

    def test_a_conditional_outside_its_places_is_found(self):
        self.assert_found({"src/layers/norm.cc": "#ifdef COLUBER_CUDA\n#endif\n"}, "src/layers/norm.cc:1", "#if")
        self.assertEqual(self.problems({"src/kernels/simd/vec.inl": "#if 1\n#endif\n"}), [])

    def test_a_map_that_cannot_be_read_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "ARCHITECTURE.md").write_text("no map\n")
            self.assertIn("expected the map's levels", Tree(Path(folder)).check()[0])


if __name__ == "__main__":
    unittest.main()
