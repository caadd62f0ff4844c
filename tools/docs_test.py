#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation says what is there: links lead somewhere, every flag of --help is on the reference page and the other way round,
and the README's examples are what they claim to be. The program is $COLUBER, or build/coluber."""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLUBER", str(ROOT / "build" / "coluber"))
PAGES = [p for top in ("", "docs", "docs/reference", "bench", "bench/*", "deploy", "examples/*", "models/*", "tests/*")
         for p in sorted(ROOT.glob(f"{top}/*.md" if top else "*.md"))]
SHARED_SECTIONS = {
    "Sampling flags": ["run", "chat", "batch"],
    "Engine flags": ["run", "chat", "batch", "serve", "logits", "inspect", "bench"],
    "Length flags": ["run", "chat", "batch", "serve", "logits", "inspect", "bench", "cache-sim"],
    "Memory flags": ["run", "chat", "batch", "serve", "bench", "cache-sim"],
    "Serving flags": ["batch", "serve", "cache-sim"],
}
FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def sections(text):
    """{"run": text of "## run", ...}"""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def program(*args):
    env = {key: value for key, value in os.environ.items() if not key.startswith("COLUBER_")}
    return subprocess.run([PROGRAM, *args], stdout=subprocess.PIPE, timeout=120, check=True, env=env).stdout.decode()


class Links(unittest.TestCase):
    def test_relative_links_lead_to_files(self):
        for page in PAGES:
            text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
                if not re.match(r"[a-z]+:", target):
                    with self.subTest(page=str(page.relative_to(ROOT)), target=target):
                        self.assertTrue((page.parent / target).exists())

    def test_links_to_a_heading_lead_to_one(self):
        def words(page):
            return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)

        for page in PAGES:
            for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", words(page)):
                headings = re.findall(r"^#+ (.+)$", words(page.parent / target if target else page), re.M)
                with self.subTest(page=str(page.relative_to(ROOT)), target=f"{target}#{anchor}"):
                    self.assertIn(anchor, [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings])


class Pictures(unittest.TestCase):
    def test_a_picture_that_a_command_draws_is_what_it_draws_now(self):
        """A page that shows a picture and its command, `coluber ... --svg NAME`, below it: the simulation draws the same on every machine."""
        found = 0
        for page in PAGES:
            for path, command in re.findall(r"\]\(([^)\s]+\.svg)\)\n\nThis is `coluber ([^`]*)`", page.read_text()):
                found += 1
                with self.subTest(page=page.name, picture=path), tempfile.TemporaryDirectory() as folder:
                    drawn = Path(folder) / "drawn.svg"
                    program(*re.sub(r"--svg \S+", f"--svg {drawn}", command).split())
                    self.assertTrue(drawn.read_bytes() == (page.parent / path).read_bytes(),
                                    f"draw {path} of {page.name} anew: coluber {command}")
        self.assertGreaterEqual(found, 1)


class Reference(unittest.TestCase):
    def setUp(self):
        self.sections = sections((ROOT / "docs" / "reference" / "cli.md").read_text())
        self.commands = re.findall(r"^  ([a-z-]+)  +", program("--help"), re.M)

    def flags_on_page(self, command):
        """The flags in the first column of the tables of the command's section and the sections that it shares."""
        text = self.sections[command] + "".join(self.sections[s] for s, users in SHARED_SECTIONS.items() if command in users)
        cells = re.findall(r"^\| (`-.+?) \|", text.replace("\\|", "/"), re.M)
        return {flag for cell in cells for flag in FLAG.findall(cell)} | set(FLAG.findall(" ".join(
            re.findall(r"`(-[^`]*)` puts", text))))

    def test_every_command_has_a_section(self):
        self.assertGreaterEqual(len(self.commands), 8)
        for command in self.commands:
            self.assertIn(command, self.sections)

    def test_every_flag_of_help_is_on_the_page_and_no_other(self):
        for command in self.commands:
            page = program(command, "--help")
            # A command of commands: the flags of all of them.
            page += "".join(program(command, inner, "--help") for inner in
                            (re.findall(r"^  ([a-z-]+)  +", page, re.M) if "Commands:" in page else []))
            lines = re.findall(r"^  (-.*?)(?:   .*)?$", page, re.M)
            found = {flag for line in lines for flag in FLAG.findall(line)} - {"-h", "--help"}
            with self.subTest(command=command):
                self.assertEqual(found, self.flags_on_page(command))

    def test_every_environment_variable_is_on_the_page(self):
        for source in (ROOT / "src").rglob("*.cc"):
            if source.stem.endswith(("_test", "_bench")):
                continue
            for name in re.findall(r'getenv\("(\w+)"\)', source.read_text()):
                self.assertIn(f"`{name}`", self.sections["Environment"], source)


class Models(unittest.TestCase):
    def test_the_table_of_families_is_that_of_the_program(self):
        page = (ROOT / "docs" / "models.md").read_text()
        table = re.search(r"<!-- supported: begin -->\n(.*?)<!-- supported: end -->", page, re.S)[1]
        self.assertEqual(table, program("models", "--supported", "--markdown"),
                         "put the output of `coluber models --supported --markdown` between the markers of docs/models.md")


class Promises(unittest.TestCase):
    """The pages that say which test holds what name tests that are there."""
    PAGES = [ROOT / "docs" / name for name in ("faults.md", "reliability.md")]
    REPORTS = ROOT.parent / "shared" / "design" / "faults.md"
    KINDS = {"PFX", "RST", "CHK", "INV", "PAD", "PRE", "SIZ", "LEK", "SES", "NUM", "OVF"}

    @classmethod
    def setUpClass(cls):
        sources = [p for top in ("src", "tests") for p in (ROOT / top).rglob("*.cc") if "_test" in p.stem or "_fuzz" in p.stem]
        tests = [pair for p in sources for pair in re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", p.read_text(), re.M)]
        cls.full = {f"{suite}.{name}" for suite, name in tests}
        cls.suites = {suite for suite, _ in tests}
        cls.names = {name for _, name in tests}
        python = {p.stem: p.read_text() for p in (ROOT / "tests").rglob("*_test.py")}
        cls.full |= {f"{stem}.{name}" for stem, text in python.items() for name in re.findall(r"^class (\w+)", text, re.M)}
        cls.names |= {name for text in python.values() for name in re.findall(r"def (test_\w+)", text)}
        planted = (ROOT / "src" / "engine" / "state_cache.h").read_text() + "".join(p.read_text() for p in (ROOT / "src" / "engine").glob("*fault*.h"))
        cls.planted = set(re.findall(r"\bk([A-Z]\w+)", planted))

    def test_every_test_that_is_named_is_there(self):
        self.assertGreater(len(self.full), 500)
        for page in self.PAGES:
            said = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
            whole = [one for one in said if re.fullmatch(r"(?:[A-Z]\w+/)?\w+\.(?:[A-Z]\w+|\*)(?:/\*)?", one)]
            self.assertGreater(len(whole), 10, page)
            for one in whole:
                bare = one.split("/")[1] if one[0].isupper() and "/" in one and "." in one.split("/")[1] else one.split("/")[0]
                with self.subTest(page=page.name, test=one):
                    self.assertTrue(bare in self.full or (bare.endswith(".*") and bare[:-2] in self.suites))
            # What goes on in the suite before, a planted fault, or a suite as a whole.
            for one in said:
                if re.fullmatch(r"(?=\w*[a-z])(?:[A-Z][a-z0-9]*){3,}|test_\w+", one):
                    with self.subTest(page=page.name, name=one):
                        self.assertTrue(one in self.names or one in self.planted or one in self.suites)

    def test_every_report_of_a_kind_that_the_cache_can_have_is_answered(self):
        if not self.REPORTS.exists():
            self.skipTest("the list of reports is not beside the repository")
        page = self.PAGES[0].read_text()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.REPORTS.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
        wanted = [row for row in rows if self.KINDS & set(row[-1].split("+"))]
        self.assertGreater(len(wanted), 40)
        for row in wanted:
            with self.subTest(report=row[1]):
                self.assertIn(re.search(r"#\d+", row[1])[0], page)


class Readme(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / "README.md").read_text()

    def test_the_library_example_is_the_file_that_it_names(self):
        code = re.search(r"```cpp\n(.*?)```", self.text, re.S)[1]
        self.assertTrue((ROOT / "examples" / "quickstart" / "main.cc").read_text().endswith("\n" + code))

    def test_the_commands_print_what_it_shows(self):
        shown = re.search(r"\$ coluber (run -p \"(.*?)\" --seed 1)\n(.*?)\n```", self.text, re.S)
        self.assertEqual(program("run", "-p", shown[2], "--seed", "1"), shown[3] + "\n")
        makefile = (ROOT / "Makefile").read_text()
        prompt = re.search(r"PROMPT \?= (.*)", makefile)[1]
        story = re.search(r"\$ make run\n(.*?)\n```", self.text, re.S)[1]
        printed = prompt + program("run", "--raw", "-p", prompt, "-n", "60", "--seed", "1")
        self.assertEqual(" ".join(printed.split()), " ".join(story.split()))

    @unittest.skipUnless("COLUBER_BUILD" in os.environ, "no build folder of `make test` is named")
    def test_it_shows_the_number_of_tests(self):
        listed = subprocess.run(["ctest", "-N", "--test-dir", os.environ["COLUBER_BUILD"]], stdout=subprocess.PIPE, check=True, timeout=60)
        total = re.search(r"Total Tests: (\d+)", listed.stdout.decode())[1]
        self.assertIn(f"100% tests passed, 0 tests failed out of {total}\n", self.text)

    def test_its_table_names_every_command(self):
        for command in re.findall(r"^  ([a-z-]+)  +", program("--help"), re.M):
            self.assertRegex(self.text, rf"(?m)^\| `{command}` \| `coluber {command}")


if __name__ == "__main__":
    unittest.main()
