# SPDX-License-Identifier: Apache-2.0
"""`coluber chat` in a pipe and on a terminal: what is kept between turns, commands, Ctrl-C."""
import os
import pty
import re
import select
import signal
import subprocess
import time
import unittest

from harness import BUILTIN, DATA, INTERRUPTED, PROGRAM, USAGE, CliTest, environment

GREEDY = ["--temperature", "0", "-n", "40"]


def stats(text):
    """The numbers of every /stats in `text`."""
    found = re.findall(r"tokens held: (\d+)\nturn (\d+): (\d+) tokens of conversation, (\d+) reused, (\d+) computed in .*\nwhy: (.*)\n", text)
    return [dict(zip(["held", "turn", "conversation", "reused", "computed"], map(int, row[:5])), why=row[5]) for row in found]


class Pipe(CliTest):
    def chat(self, lines, *args):
        return self.succeeds("chat", *GREEDY, *args, stdin="".join(line + "\n" for line in lines))

    def test_every_line_gets_the_answer_that_run_gives(self):
        question = 'What does "river" mean?'
        answer = self.succeeds("run", "-p", question, *GREEDY).out
        self.assertEqual(self.chat([question]).out, answer)

    def test_second_turn_computes_only_what_is_new(self):
        first, second = stats(self.chat(["What is a river?", "/stats", "Use it in a sentence.", "/stats"]).out)
        self.assertEqual((first["turn"], first["reused"]), (1, 0))
        self.assertEqual(first["computed"], first["conversation"])
        self.assertEqual(second["turn"], 2)
        self.assertEqual(second["reused"] + second["computed"], second["conversation"])
        self.assertGreaterEqual(second["reused"], first["conversation"])
        self.assertLess(second["computed"], second["conversation"])

    def test_kept_state_gives_the_answer_of_the_conversation_computed_anew(self):
        questions = ["What is a river?", "What is a tree?", "Use it in a sentence."]
        out = self.chat(questions).out
        rendered, cold = "", ""
        for question in questions:
            rendered += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            answer = self.succeeds("run", "--raw", "-p", rendered, *GREEDY).out
            cold += answer
            rendered += answer[:-1] + "<|im_end|>\n"
        self.assertEqual(out, cold)

    def test_template_that_strips_earlier_answers_goes_back_to_the_checkpoint(self):
        model = self.copy_model(BUILTIN)
        template = ("{% for m in messages %}{% if m.role == 'user' or loop.last %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                    "{% else %}<|im_start|>assistant\nShort.<|im_end|>\n{% endif %}{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
        self.edit_json(model / "tokenizer_config.json", lambda t: t.update(chat_template=template))
        first, second, third = stats(self.chat(["What is a river?", "/stats", "What is a tree?", "/stats", "And a dog?", "/stats"], str(model)).out)
        for before, after in [(first, second), (second, third)]:
            self.assertIn(f"checkpoint of turn {before['turn']}", after["why"])
            self.assertGreater(after["reused"], 0)
            self.assertLess(after["reused"], before["conversation"])
        self.assertGreater(third["reused"], second["reused"])

    def test_template_that_makes_no_text_is_named(self):
        model = self.copy_model(BUILTIN)
        self.edit_json(model / "tokenizer_config.json", lambda t: t.update(chat_template="{# nothing #}"))
        self.fails(USAGE, "chat", str(model), stdin="hi\n", says="chat template makes no text")

    def test_new_system_message_computes_from_the_start_and_says_so(self):
        first, second = stats(self.chat(["What is a river?", "/stats", "/system Be short.", "What is a tree?", "/stats"]).out)
        self.assertEqual(second["reused"], 0)
        self.assertIn("from the start", second["why"])

    def test_reset_forgets_the_conversation(self):
        question = "What is a river?"
        result = self.chat([question, "/reset", question])
        first = self.chat([question]).out
        self.assertEqual(result.out, first + first)

    def test_help_lists_the_commands_and_quit_ends(self):
        out = self.chat(["/help", "/quit", "What is a river?"]).out
        for command in ["/help", "/reset", "/system", "/stats", "/quit"]:
            self.assertIn(command, out)
        self.assertNotIn("river", out)

    def test_unknown_command_is_told_and_the_conversation_goes_on(self):
        result = self.chat(["/frobnicate", "What is a river?"])
        self.assertIn("/frobnicate", result.err)
        self.assertTrue(result.out.strip())

    def test_last_line_without_a_line_end_is_a_turn(self):
        with_end = self.succeeds("chat", *GREEDY, stdin="What is a river?\n").out
        self.assertEqual(self.succeeds("chat", *GREEDY, stdin="What is a river?").out, with_end)

    def test_empty_input_ends_well(self):
        self.assertEqual(self.succeeds("chat", stdin="").out, "")

    def test_invalid_utf8_ends_with_a_message(self):
        self.fails(USAGE, "chat", stdin=b"caf\xe9\n", says="UTF-8")

    def test_model_without_tokenizer_is_refused_with_a_way_out(self):
        self.fails(None, "chat", DATA / "mamba2", stdin="hi\n", says=["tokenizer", "--prompt-ids"])

    def test_model_without_template_is_refused_with_a_way_out(self):
        model = self.copy_model(BUILTIN)
        self.edit_json(model / "tokenizer_config.json", lambda t: t.pop("chat_template"))
        self.fails(None, "chat", model, stdin="hi\n", says=["chat template", "--raw"])

    def test_an_answer_that_meets_the_context_limit_says_what_makes_room(self):
        result = self.succeeds("chat", "--max-model-len", "12", "--seed", "1", stdin="hi\n")
        self.assertIn("/reset", result.err)
        self.assertNotIn("--max-tokens", result.err)

    def test_conversation_beyond_the_context_limit_is_refused(self):
        result = self.fails(None, "chat", "--max-model-len", "16", stdin="one two three four five six seven eight nine ten\n")
        self.assertIn("16", result.err)


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, *args):
        self.master, slave = pty.openpty()
        self.child = subprocess.Popen([PROGRAM, "chat", *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                      preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
                                      env=environment(TERM="xterm", HOME="/nonexistent"))
        os.close(slave)
        self.shown = ""

    def wait_for(self, words, seconds=60):
        """Reads until `words` is shown; returns what came up to there."""
        deadline = time.monotonic() + seconds
        while words not in self.shown:
            if time.monotonic() > deadline:
                raise AssertionError(f"{words!r} was not shown; the terminal had {self.shown[-1500:]!r}")
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.master, 65536).decode("utf-8", "replace").replace("\r", "")
                except OSError:
                    raise AssertionError(f"ended before {words!r}; the terminal had {self.shown[-1500:]!r}") from None
        before, _, self.shown = self.shown.partition(words)
        return before

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        deadline = time.monotonic() + 30
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        try:
            return self.child.wait(timeout=10)
        finally:
            os.close(self.master)


class OnTerminal(CliTest):
    def start(self, *args):
        terminal = Terminal(*args)
        self.addCleanup(lambda: terminal.child.poll() is None and terminal.child.kill())
        terminal.wait_for("> ")
        return terminal

    def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(self):
        chat = self.start("--ignore-eos", "-n", "100000", "--temperature", "0")
        chat.type("What is a river?\n")
        chat.wait_for("river")
        time.sleep(1.0)
        chat.type("\x03")
        chat.wait_for("stopped")
        chat.wait_for("> ")
        chat.type("/stats\n")
        self.assertIn("turn 1", chat.wait_for("why:"))
        chat.wait_for("> ")
        chat.type("/quit\n")
        self.assertEqual(chat.end(), 0)

    def test_ctrl_c_at_the_prompt_drops_the_line_only(self):
        chat = self.start()
        for last_try in (False, False, True):
            chat.type("half a line\x03")
            try:
                chat.wait_for("quit ends", 60 if last_try else 5)
                break
            except AssertionError:  # with Ctrl-C the system drops what waits to be shown, which may be the answer to it
                if last_try:
                    raise
        chat.wait_for("> ")
        chat.type("/stats\n")
        chat.wait_for("no turn yet")
        chat.type("\x04")
        self.assertEqual(chat.end(), 0)

    def test_history_brings_back_the_last_line(self):
        chat = self.start()
        chat.type("/stats\n")
        chat.wait_for("no turn yet")
        chat.wait_for("> ")
        chat.type("\x1b[A\n")  # cursor up
        chat.wait_for("no turn yet")
        chat.type("\x04")
        self.assertEqual(chat.end(), 0)

    def test_letters_beyond_ascii_can_be_typed_and_erased(self):
        chat = self.start()
        chat.type("/stätsé\x7f\x7f\x7f\x7fats\n")
        chat.wait_for("no turn yet")
        chat.type("/quit\n")
        self.assertEqual(chat.end(), 0)


class PipeInterrupt(CliTest):
    def test_ctrl_c_in_a_pipe_ends_with_130(self):
        child = subprocess.Popen([PROGRAM, "chat", "--ignore-eos", "-n", "100000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=environment())
        child.stdin.write(b"What is a river?\n")
        child.stdin.flush()
        self.assertTrue(child.stdout.read(4))
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, INTERRUPTED)


if __name__ == "__main__":
    unittest.main()
