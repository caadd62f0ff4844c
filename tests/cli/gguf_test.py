# SPDX-License-Identifier: Apache-2.0
"""GGUF files as users name them: a file, a folder that holds one, one with a tokenizer and no weights."""
import json
import shutil
import unittest

from harness import DATA, CliTest

GGUF = DATA / "gguf"
MODEL = GGUF / "lfm2.Q8_0.gguf"
TOKENIZER = GGUF / "tokenizer.bpe_llama3.gguf"


class Gguf(CliTest):
    def test_a_file_and_its_folder_are_the_same_model(self):
        shutil.copy(MODEL, self.folder)
        outputs = [self.succeeds("run", path, "--prompt-ids", "1,2,3", "--max-tokens", "5", "--temperature", "0").out
                   for path in (MODEL, self.folder)]
        self.assertEqual(outputs[0], outputs[1])
        self.assertRegex(outputs[0], r"^\d+(,\d+)*\n?$")
        inspected = self.succeeds("inspect", self.folder).out
        for part in ("lfm2", "Q8_0", "full_attention"):
            self.assertIn(part, inspected)

    def test_texts_need_a_tokenizer_in_it_or_beside_it(self):
        self.fails(None, "tokenize", "-p", "Hello", MODEL, says=["lfm2.Q8_0.gguf", "tokenizer.json"])
        shutil.copy(MODEL, self.folder)
        shutil.copy(DATA / "tokenizers" / "bpe_llama3" / "tokenizer.json", self.folder)
        beside = self.succeeds("tokenize", "-p", "Hello", self.folder).out
        self.assertEqual(self.succeeds("tokenize", "-p", "Hello", TOKENIZER).out, beside)
        self.assertEqual(self.succeeds("detokenize", "--ids", beside.strip(), TOKENIZER).out.strip(), "Hello")

    def test_its_chat_template_is_rendered(self):
        request = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
        rendered = json.loads(self.succeeds("template", TOKENIZER, "--jsonl", stdin=request + "\n").out)
        self.assertEqual(rendered["text"], "<|begin_of_text|><user>Hi")

    def test_a_file_that_is_none_is_named(self):
        path = self.folder / "x.gguf"
        path.write_bytes(b"not what it is called")
        self.fails(None, "inspect", path, says="x.gguf")
        self.fails(None, "inspect", self.folder / "y.gguf", says=["y.gguf", "there is no model"])
        shutil.copy(MODEL, self.folder)
        self.fails(None, "inspect", self.folder, says=["lfm2.Q8_0.gguf", "x.gguf"])


if __name__ == "__main__":
    unittest.main()
