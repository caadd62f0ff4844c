# SPDX-License-Identifier: Apache-2.0
"""`coluber models`: the registry as a list."""
import json
import unittest

from harness import USAGE, CliTest


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

    def test_two_forms_at_once_are_refused(self):
        self.fails(USAGE, "models", "--json", "--markdown", says=["--json", "--markdown"])


if __name__ == "__main__":
    unittest.main()
