# SPDX-License-Identifier: Apache-2.0
"""`coluber models`: the registry as a list."""
import json
import re
import unittest

from harness import ROOT, USAGE, CliTest


class Models(CliTest):
    def test_every_form_lists_the_same_families(self):
        families = json.loads(self.succeeds("models", "--supported", "--json").out)
        names = [family["model_type"] for family in families]
        self.assertEqual(names, sorted(set(names)))
        self.assertIn("mamba2", names)
        table = self.succeeds("models", "--supported").out.splitlines()
        self.assertEqual([line.split()[0] for line in table], names)
        markdown = self.succeeds("models", "--markdown").out.splitlines()[2:]
        self.assertEqual([line.split("`")[1] for line in markdown], names)
        for family, line, row in zip(families, table, markdown):
            for name in family["architectures"]:
                self.assertIn(name, line)
                self.assertIn(f"`{name}`", row)
            self.assertEqual(family["known_by_tensors"], "by its tensors" in line)
        self.assertEqual(self.succeeds("models").out, self.succeeds("models", "--supported").out)

    def test_the_documents_tell_of_the_families_that_there_are(self):
        markdown = self.succeeds("models", "--supported", "--markdown").out
        text = (ROOT / "docs" / "models.md").read_text()
        table = re.search("<!-- supported: begin -->\n(.*?)<!-- supported: end -->", text, re.DOTALL)[1]
        self.assertEqual(table, markdown, "put what 'coluber models --supported --markdown' prints between the marks")
        names = {line.split("`")[1] for line in markdown.splitlines()[2:]}
        readme = (ROOT / "README.md").read_text().split("## What it runs")[1].split("\n## ")[0]
        rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `")]
        told = [name for row in rows for name in re.findall("`([^`]+)`", row)]
        self.assertEqual(len(told), len(set(told)))
        self.assertLessEqual(set(told), names)
        self.assertGreater(len(told), 20)

    def test_two_forms_at_once_are_refused(self):
        self.fails(USAGE, "models", "--json", "--markdown", says=["--json", "--markdown"])


if __name__ == "__main__":
    unittest.main()
