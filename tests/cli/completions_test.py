# SPDX-License-Identifier: Apache-2.0
"""Completions of shells and the manual page: made from the options themselves, and taken by those who read them."""
import re
import shutil
import subprocess
import unittest

from harness import USAGE, CliTest, coluber

FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def run(*words, text=""):
    return subprocess.run([str(word) for word in words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, check=False)


def commands():
    """Every command's words, those within others too."""
    for name in re.findall(r"^  ([a-z-]+)  +", coluber("--help").out, re.M):
        yield (name,)
        page = coluber(name, "--help").out
        for inner in re.findall(r"^  ([a-z-]+)  +", page.partition("Commands:")[2], re.M):
            yield (name, inner)


def flags_of(words):
    lines = re.findall(r"^  (-.*?)(?:   .*)?$", coluber(*words, "--help").out, re.M)
    return {flag for line in lines for flag in FLAG.findall(re.sub(r" [A-Z|a-z0-9-]*$", "", line))} - {"-h"}


class Completions(CliTest):
    def complete(self, *words):
        """What bash offers for the last word."""
        script = self.folder / "coluber.bash"
        script.write_text(self.succeeds("completions", "bash").out)
        done = run("bash", "-c", 'source "$1"; shift; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _coluber; '
                   'printf "%s\\n" "${COMPREPLY[@]}"', "_", script, "coluber", *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.split()

    @unittest.skipUnless(shutil.which("bash"), "needs bash")
    def test_bash_offers_every_command_flag_and_choice_and_no_other(self):
        names = [words[0] for words in commands() if len(words) == 1]
        self.assertEqual(set(self.complete("")), {*names, "help", "--help", "--version"})
        for words in commands():
            with self.subTest(command=words):
                self.assertEqual(set(self.complete(*words, "-")), flags_of(words) | {"--help"})
        self.assertEqual(self.complete("run", "--dtype", ""), ["float32", "auto"])
        self.assertEqual(self.complete("run", "--dtype", "=", "fl"), ["float32"])
        self.assertEqual(self.complete("run", "--max-tokens", ""), [])
        self.assertIn("show", self.complete("session", ""))
        script = str(self.folder / "coluber.bash")
        self.assertIn(script, self.complete("run", "--file", script[:-3]))

    def test_shells_take_what_is_made_for_them(self):
        flags = {flag for words in commands() for flag in flags_of(words) if flag.startswith("--")}
        for shell, check in {"bash": ["shellcheck", "-s", "bash"], "zsh": ["zsh", "-n"], "fish": ["fish", "-n"]}.items():
            file = self.folder / shell
            text = self.succeeds("completions", shell).out
            file.write_text(text)
            for flag in flags:
                self.assertIn(flag if shell != "fish" else f" -l {flag[2:]} ", text, shell)
            if shutil.which(check[0]):
                done = run(*check, file)
                self.assertEqual((done.returncode, done.stdout), (0, ""), shell)

    @unittest.skipUnless(shutil.which("fish"), "needs fish")
    def test_fish_offers_flags_of_the_command_that_is_written(self):
        file = self.folder / "coluber.fish"
        file.write_text(self.succeeds("completions", "fish").out)
        offered = run("fish", "-c", f"source {file}; complete -C'coluber run --to'").stdout
        self.assertRegex(offered, r"(?m)^--top-k\t")
        self.assertNotIn("--to\t", offered)  # of convert

    def test_an_unknown_shell_is_refused_by_name(self):
        self.fails(USAGE, "completions", "tcsh", says=["tcsh", "bash, zsh or fish"])
        self.fails(USAGE, "completions", says="SHELL")


class Manual(CliTest):
    def test_it_has_every_command_and_flag_and_no_mistake_of_troff(self):
        page = self.succeeds("man").out
        plain = page.replace("\\-", "-").replace("\\fR", "").replace("\\fB", "").replace("\\fI", "")
        for words in commands():
            section = plain.partition(f".SS coluber {' '.join(words)}\n")[2].partition(".SS ")[0]
            named = set(FLAG.findall(" ".join(re.findall(r"^\.TP\n(.*)$", section, re.M))))
            with self.subTest(command=words):
                self.assertLessEqual(flags_of(words) - {"--help"}, named)
        if shutil.which("groff"):
            done = run("groff", "-man", "-ww", "-z", "-K", "utf8", text=page)
            self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
