# SPDX-License-Identifier: Apache-2.0
"""`coluber tokenize`, `detokenize` and `template`: lines of JSON in, lines of JSON out."""
import json
import signal
import subprocess
import time
import unittest

from harness import BUILTIN, DATA, INTERRUPTED, PROGRAM, USAGE, CliTest, coluber, environment

TOKENIZERS = DATA / "tokenizers"


def lines(objects):
    return "".join(json.dumps(one) + "\n" for one in objects)


def tokenizer_file(folder):
    names = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "rwkv_vocab_v20230424.txt")
    return next(folder / name for name in names if (folder / name).exists())


class Tokenizers(CliTest):
    def jsonl(self, command, model, objects):
        out = self.succeeds(command, model, "--jsonl", stdin=lines(objects)).out
        self.assertEqual(out.count("\n"), len(objects))
        return [json.loads(line) for line in out.splitlines()]

    def test_every_case_of_every_tokenizer_goes_there_and_back(self):
        names = sorted(path.parent.name for path in TOKENIZERS.glob("*/cases.json"))
        self.assertGreaterEqual(len(names), 10)
        for name in names:
            with self.subTest(tokenizer=name):
                folder = TOKENIZERS / name
                cases = json.loads((folder / "cases.json").read_text())["cases"]
                plain = self.jsonl("tokenize", folder, [{"text": c["text"], "add_special_tokens": False} for c in cases])
                self.assertEqual([r["ids"] for r in plain], [c["ids"] for c in cases])
                special = self.jsonl("tokenize", tokenizer_file(folder), [{"text": c["text"]} for c in cases])
                self.assertEqual([r["ids"] for r in special], [c["ids_with_special"] for c in cases])
                text = self.jsonl("detokenize", folder, [{"ids": c["ids"], "skip_special_tokens": False} for c in cases])
                self.assertEqual([r["text"] for r in text], [c["decoded"] for c in cases])
                skipped = self.jsonl("detokenize", folder, [{"ids": c["ids_with_special"]} for c in cases])
                self.assertEqual([r["text"] for r in skipped], [c["decoded_skip_special"] for c in cases])

    def test_a_broken_line_is_named_by_its_number(self):
        for command, bad in [("tokenize", '{"text": 5}'), ("tokenize", "{"), ("detokenize", '{"ids": "x"}'), ("detokenize", "[]")]:
            with self.subTest(command=command, bad=bad):
                good = {"text": "a"} if command == "tokenize" else {"ids": [5]}
                result = coluber(command, BUILTIN, "--jsonl", stdin=lines([good]) + bad + "\n")
                self.assertNotEqual(result.code, 0)
                self.assertIn("line 2", result.err)

    def test_files_that_hold_no_tokenizer_are_refused_with_those_that_do(self):
        self.fails(None, "tokenize", TOKENIZERS / "make_foreign.py", "-p", "x", says=["make_foreign.py", "tokenizer.json", "tokenizer.model"])
        self.fails(None, "tokenize", TOKENIZERS / "chat.json", "-p", "x", says=["chat.json", "tokenizer.json"])

    def test_model_without_tokenizer_is_refused(self):
        self.fails(None, "tokenize", DATA / "mamba2", stdin="hi", says="tokenizer")


class Templates(CliTest):
    def test_every_case_renders_or_fails_as_expected(self):
        data = json.loads((TOKENIZERS / "chat.json").read_text())
        conversations = {conversation["name"]: conversation for conversation in data["conversations"]}
        requests = []
        for case in data["cases"]:
            conversation = conversations[case["conversation"]]
            request = {"messages": conversation["messages"], "template": data["templates"][case["template"]], "now": data["now"],
                       "bos_token": data["bos_token"], "eos_token": data["eos_token"], "add_generation_prompt": case["add_generation_prompt"]}
            request.update({key: conversation[key] for key in ("tools", "kwargs") if conversation.get(key) is not None})
            requests.append(request)
        out = self.succeeds("template", BUILTIN, "--jsonl", stdin=lines(requests)).out.splitlines()
        self.assertEqual(len(out), len(requests))
        for case, line in zip(data["cases"], out):
            result = json.loads(line)
            if "text" in case:
                self.assertEqual(result.get("text"), case["text"], (case["template"], case["conversation"]))
            else:
                self.assertIn("error", result, (case["template"], case["conversation"]))

    def test_a_request_with_its_own_template_needs_nothing_of_the_models_broken_one(self):
        model = self.copy_model(BUILTIN)
        (model / "chat_template.jinja").write_text("{% if %}")
        requests = [{"messages": [], "template": "{{ eos_token }}!"}, {"messages": []}]
        good, bad = self.succeeds("template", model, "--jsonl", stdin=lines(requests)).out.splitlines()
        self.assertEqual(json.loads(good), {"text": "<|im_end|>!"})
        self.assertIn("chat_template.jinja", json.loads(bad)["error"])
        self.fails(None, "template", model, "-p", "hi", says="chat_template.jinja")

    def test_an_interrupt_while_a_line_is_worked_on_is_not_forgotten(self):
        slow = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
        child = subprocess.Popen([PROGRAM, "template", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=environment())
        child.stdin.write(lines([{"messages": [], "template": slow}]).encode())
        child.stdin.flush()  # and stays open: the next line never comes
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(timeout=60), INTERRUPTED)
        for stream in (child.stdin, child.stdout, child.stderr):
            stream.close()

    def test_the_models_own_template_is_the_default(self):
        out = self.succeeds("template", "--jsonl", stdin=lines([{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}])).out
        self.assertEqual(json.loads(out)["text"], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


class Usage(CliTest):
    def test_unknown_options_are_refused(self):
        for command in ("tokenize", "detokenize", "template"):
            self.fails(USAGE, command, "--nonsense", says="--nonsense")


if __name__ == "__main__":
    unittest.main()
