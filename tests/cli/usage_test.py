# SPDX-License-Identifier: Apache-2.0
"""Usage, help, exit codes and streams, whatever the subcommand."""
import os
import subprocess
import unittest

from harness import OK, PROGRAM, USAGE, CliTest, coluber, environment

COMMANDS = ["run", "chat", "logits", "tokenize", "detokenize", "template", "inspect", "models", "bench"]


class Usage(CliTest):
    def test_without_arguments_prints_usage_to_stderr_and_exits_2(self):
        result = coluber()
        self.assertEqual(result.code, USAGE)
        self.assertEqual(result.out, "")
        for command in COMMANDS:
            self.assertIn(command, result.err)

    def test_version_names_the_program_and_a_number(self):
        self.assertRegex(self.succeeds("--version").out, r"^coluber \d+\.\d+\.\d+\n$")

    def test_help_goes_to_stdout(self):
        for args in (["--help"], ["-h"], ["help"]):
            result = self.succeeds(*args)
            self.assertIn("Usage: coluber", result.out)
            self.assertEqual(result.err, "")

    def test_help_of_each_command_has_its_usage_and_at_least_three_examples(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                result = self.succeeds(command, "--help")
                self.assertIn(f"Usage: coluber {command}", result.out)
                examples = [line for line in result.out.splitlines() if f"coluber {command}" in line]
                self.assertGreaterEqual(len(examples), 4, result)  # the usage line and three examples
                self.assertEqual(result.err, "")
                self.assertEqual(self.succeeds("help", command).out, result.out)

    def test_help_shows_defaults_and_what_auto_dtype_does(self):
        text = self.succeeds("run", "--help").out
        self.assertIn("(default: 512)", text)
        self.assertIn("(default: float32)", text)
        self.assertIn("bf16", text)

    def test_unknown_command_lists_the_known_ones(self):
        self.fails(USAGE, "rum", says=["'rum'", "run", "chat"])

    def test_unknown_option_suggests_the_nearest(self):
        self.fails(USAGE, "run", "-p", "x", "--temprature", "1", says=["'--temprature'", "'--temperature'"])
        # What one command calls --out another calls --output.
        self.fails(USAGE, "logits", "--output", "x", says=["'--output'", "mean '--out'"])
        self.fails(USAGE, "session", "export", "x", "--out", "y", says=["'--out'", "mean '--output'"])

    def test_unknown_option_without_a_near_one_is_refused_by_name(self):
        self.fails(USAGE, "run", "-p", "x", "--frobnicate", says="'--frobnicate'")

    def test_option_without_its_value_is_named(self):
        self.fails(USAGE, "run", "-p", says=["--prompt", "needs a value"])

    def test_surplus_word_is_named(self):
        self.fails(USAGE, "run", "a", "b", "-p", "x", says="'b'")

    def test_values_out_of_range_name_flag_expectation_and_finding(self):
        for flag, value, expected in [("-n", "0", "1 or more|from 1"), ("--top-k", "-2", "from -1"), ("--top-p", "1.5", "from 0 to 1"),
                                      ("--min-p", "-0.1", "from 0 to 1"), ("--temperature", "-1", "from 0"),
                                      ("--temperature", "nan", "number"), ("--temperature", "warm", "number"),
                                      ("--seed", "-1", "0 or more"), ("--threads", "1e3", "whole number"),
                                      ("--max-num-batched-tokens", "0", "from 1"), ("--dtype", "int3", "float32"),
                                      ("-n", "99999999999999999999", "whole number")]:
            with self.subTest(flag=flag, value=value):
                result = self.fails(USAGE, "run", "-p", "x", flag, value, says=f"'{value}'")
                self.assertRegex(result.err, expected)
                self.assertIn("--", result.err)

    def test_forced_implementations_that_there_are_not_are_refused_all_at_once_before_a_model_is_looked_for(self):
        wrong = environment(COLUBER_FORCE_IMPL="gem=ref,gemm=sse9,nonsense")
        for args in (["run", "no/such/model", "-p", "x"], ["inspect"], ["bench", "--reps", "1"], ["logits", "--ids", "1", "--out", "x"]):
            with self.subTest(args=args):
                self.fails(USAGE, *args, env=wrong, says=["COLUBER_FORCE_IMPL", "'gem'", "gemm", "'sse9'", "ref", "'nonsense'", "rms_norm"])
        self.fails(USAGE, "run", "-p", "x", env=environment(COLUBER_FORCE_ISA="sse9"), says=["COLUBER_FORCE_ISA", "avx2"])
        self.succeeds("run", "--help", env=wrong)
        self.succeeds("run", "-p", "x", "-n", "1", env=environment(COLUBER_FORCE_IMPL="gemm=ref"))

    def test_a_value_may_begin_with_a_dash(self):
        result = self.succeeds("run", "--raw", "-p", "--help", "-n", "1", "--temperature", "0")
        self.assertNotIn("Usage", result.out)

    def test_color_codes_never_reach_a_pipe(self):
        for args in (["inspect"], ["run", "-p", "hi", "-n", "2"], ["--help"]):
            result = self.succeeds(*args)
            self.assertNotIn("\033", result.out + result.err)


class Streams(CliTest):
    def test_full_disk_on_stdout_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        for args in (["--version"], ["--help"], ["run", "-p", "hi", "-n", "4"], ["run", "-p", "hi", "-n", "4", "--json"], ["inspect"]):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                result = coluber(*args, stdout=full)
                self.assertNotEqual(result.code, OK, result)
                self.assertIn("standard output", result.err)
                self.assertIn("No space left", result.err)

    def test_closed_stdout_is_an_error(self):
        done = subprocess.run(["sh", "-c", '"$0" --version >&-', PROGRAM], stderr=subprocess.PIPE, env=environment(), timeout=60)
        self.assertNotEqual(done.returncode, OK)
        self.assertIn(b"standard output", done.stderr)

    def test_closed_pipe_ends_quietly_but_not_with_success(self):
        child = subprocess.Popen([PROGRAM, "run", "--raw", "-p", "Once", "-n", "4000", "--ignore-eos", "--seed", "1"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.assertTrue(child.stdout.read(4))
        child.stdout.close()
        error = child.stderr.read()
        child.stderr.close()
        code = child.wait(timeout=60)
        self.assertEqual(error, b"")
        self.assertGreater(code, 0)


class Limits(CliTest):
    def test_threads_that_cannot_be_started_are_refused_with_the_way_out(self):
        import resource

        def little_memory():
            resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))  # what each thread reserves
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

        def run(threads):
            return subprocess.run([PROGRAM, "run", "-p", "hi", "-n", "2", "--threads", threads], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, env=environment(), preexec_fn=little_memory, timeout=60)
        if run("2").returncode != OK:
            self.skipTest("the program reserves more addresses than this test leaves it, as sanitizers do")
        done = run("1000")
        self.assertEqual(done.returncode, 9, done.stderr)
        self.assertRegex(done.stderr, rb"^coluber: thread \d+ of 1000 could not be started .*--threads")


class BuiltinModel(CliTest):
    def test_a_wrong_model_directory_is_refused_with_the_places_searched(self):
        self.fails(None, "inspect", env=environment(COLUBER_MODEL_DIR=str(self.folder)), says=[str(self.folder), "COLUBER_MODEL_DIR"])

    def test_the_model_directory_is_used(self):
        from harness import BUILTIN
        for folder in (BUILTIN.parent, BUILTIN):
            self.succeeds("inspect", env=environment(COLUBER_MODEL_DIR=str(folder)))

    def test_it_is_found_from_any_working_directory(self):
        done = subprocess.run([PROGRAM, "inspect", "--json"], cwd="/", stdout=subprocess.PIPE, env=environment(), timeout=60)
        self.assertEqual(done.returncode, OK)
        self.assertIn(b'"mamba2"', done.stdout)


if __name__ == "__main__":
    unittest.main()
