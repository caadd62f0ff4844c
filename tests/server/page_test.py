# SPDX-License-Identifier: Apache-2.0
"""The page at `/`, as browsers and hands meet it: Debian's Chromium, driven by playwright."""
import json
import os
import re
import tempfile
import unittest
from pathlib import Path

from harness import ROOT, SECONDS, Server

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = os.environ.get("COLUBER_CHROMIUM", "/usr/bin/chromium")
ANSWER = ".turn.assistant:not(.running)"
MODEL = ROOT / "models" / "asp-7m"


def base_model(folder):
    """The built-in model without its chat template."""
    for file in MODEL.iterdir():
        if file.name != "tokenizer_config.json":
            (Path(folder) / file.name).symlink_to(file)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Files(unittest.TestCase):
    def test_the_page_needs_no_key_runs_only_its_own_scripts_and_is_sent_once(self):
        with Server("--api-key", "k") as server:
            status, headers, page = server.request("GET", "/")
            self.assertEqual(status, 200)
            self.assertEqual(headers["Content-Type"], "text/html; charset=utf-8")
            policy = headers["Content-Security-Policy"]
            for rule in ("default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'", "frame-ancestors 'none'"):
                self.assertIn(rule, policy)
            self.assertNotIn("unsafe", policy)
            for file in re.findall(rb'(?:href|src)="(page/[^"]+)"', page):
                status, one, data = server.request("GET", "/" + file.decode())
                self.assertEqual((status, one["X-Content-Type-Options"]), (200, "nosniff"))
                again, headers, nothing = server.request("GET", "/" + file.decode(), headers={"If-None-Match": "W/" + one["ETag"]})
                self.assertEqual((again, nothing, headers["ETag"]), (304, b"", one["ETag"]))
                self.assertNotIn("Content-Length", headers)
                stale, _, whole = server.request("GET", "/" + file.decode(), headers={"If-None-Match": '"0"'})
                self.assertEqual((stale, whole), (200, data))
            for path in ("/page/", "/page/none.js", "/page/../service.cc"):
                self.assertEqual(server.request("GET", path)[0], 404)
            self.assertEqual(server.request("POST", "/", "x")[0], 405)

    def test_the_page_can_be_left_out(self):
        with Server("--no-page") as server:
            self.assertEqual(server.request("GET", "/")[0], 404)
            self.assertEqual(server.request("GET", "/page/page.js")[0], 404)
            self.assertEqual(server.request("GET", "/health")[0], 200)


def events(*deltas, **last):
    """A stream of /v1/chat/completions of these deltas."""
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "prompt_tokens_details": {"cached_tokens": 12}}
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": usage, **last})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


@unittest.skipIf(sync_playwright is None, "playwright is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
@unittest.skipUnless(os.access(CHROMIUM, os.X_OK), f"there is no {CHROMIUM}; apt-get install chromium, or name one in COLUBER_CHROMIUM")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "tiny", "--max-num-seqs", 4)
        cls.playwright = sync_playwright().start()
        expect.set_options(timeout=1000 * SECONDS)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        cls.server.__exit__()

    def setUp(self):
        self.problems = []
        self.page = self.open()

    def tearDown(self):
        # Whatever the browser refused (its policy, above all) or an exception that nobody caught.
        self.page.context.close()
        self.assertEqual([text for text in self.problems if "status of 4" not in text], [])

    def open(self, address=None, ready=True, **context):
        page = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context}).new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        page.goto(address or self.server.address)
        if ready:
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    def limit(self, tokens, page=None):
        page = page or self.page
        page.keyboard.press("Alt+s")
        page.get_by_label("Most tokens").fill(str(tokens))
        page.get_by_label("Temperature").fill("0")
        page.keyboard.press("Alt+s")

    def ask(self, text, answers, page=None):
        page = page or self.page
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(f"{ANSWER} .bar >> text=Again")).to_have_count(answers)

    def answered_with(self, body, status=200):
        kind = "text/event-stream" if status == 200 else "application/json"
        self.page.route("**/v1/sessions**", lambda route: route.fulfill(status=404, body="{}"))
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, content_type=kind, body=body))

    # ---- the whole way, with the model

    def test_an_answer_streams_and_the_next_turn_comes_from_its_state(self):
        self.limit(24)
        self.ask("What does river mean?", 1)
        first = self.page.locator(f"{ANSWER} .body").inner_text()
        whole = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What does river mean?"}],
                                                          "max_tokens": 24, "temperature": 0})[1]
        self.assertEqual(first.split(), whole["choices"][0]["message"]["content"].split())
        self.ask("And a lake?", 2)
        second = self.page.locator(f"{ANSWER} >> nth=1")
        cached = int(re.search(r"(\d+) tokens? from a kept state", second.inner_text())[1])
        self.assertGreater(cached, 10)
        second.get_by_role("button", name="Show the tokens").click()
        expect(second.locator(".chip.cached")).to_have_count(cached)

    def test_an_edited_turn_is_a_branch_beside_the_first_and_both_stay(self):
        self.limit(12)
        self.ask("Tell of a river.", 1)
        self.ask("Go on.", 2)
        page = self.page
        page.locator(".turn.user >> nth=1").get_by_role("button", name="Edit").click()
        page.get_by_label("The edited turn").fill("Go on, but short.")
        page.keyboard.press("Enter")
        expect(page.locator(f"{ANSWER} .bar >> text=Again")).to_have_count(2)
        expect(page.locator(".turn.user >> nth=1").get_by_text("2/2")).to_be_visible()
        expect(page.locator("#tree .node")).to_have_count(6)
        page.get_by_role("button", name="Side by side").click()
        forks = self.server.get("/v1/sessions")[1]["data"]
        self.assertGreaterEqual(len(forks), 2)
        expect(page.get_by_text("A fork of the session")).to_be_visible()
        columns = page.locator(".column .turn.user .body")
        self.assertEqual(columns.all_inner_texts(), ["Go on.", "Go on, but short."])
        page.reload()
        expect(page.locator("#tree .node")).to_have_count(6)
        page.get_by_role("button", name="You: Go on.", exact=True).click()
        expect(page.locator(".turn.user .body >> nth=1")).to_have_text("Go on.")
        page.keyboard.press("Alt+n")
        expect(page.locator(".turn")).to_have_count(0)

    def test_escape_stops_an_answer_and_the_server_with_it(self):
        page = self.page
        page.get_by_label("Message", exact=True).fill("Count.")
        # An end of its own would be no stop.
        page.route("**/completions", lambda route: route.continue_(
            post_data=json.dumps({**route.request.post_data_json, "max_tokens": 1500, "ignore_eos": True})))
        page.keyboard.press("Enter")
        expect(page.locator(".turn.running .facts")).to_contain_text("tokens/s")
        page.keyboard.press("Escape")
        expect(page.get_by_text("Stopped.")).to_be_visible()
        self.assertRegex(page.locator(f"{ANSWER} .facts").inner_text(), r"[1-9]\d* tokens/s")
        self.server.wait_until_idle(10)

    # ---- what a model or a server may say

    def test_text_of_a_model_is_shown_as_markdown_and_never_becomes_markup(self):
        text = ("# Title\n\nSome **bold**, *italic*, `code` and <img src=x onerror=alert(1)> <script>alert(2)</script>\n\n"
                "- one\n- two\n  1. inner\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f(): return '<b>'  # note\n```\n\n"
                "[fine](https://example.org/x) [bad](javascript:alert(3)) ![picture](https://example.org/p.png)")
        self.answered_with(events(*({"content": text[i:i + 7]} for i in range(0, len(text), 7))))
        self.ask("x", 1)
        body = self.page.locator(f"{ANSWER} .body")
        for selector, wanted in {"h3": "Title", "strong": "bold", "em": "italic", "p > code": "code", "ul > li >> nth=1 >> ol > li": "inner",
                                 "td >> nth=1": "2", "pre": "def f(): return '<b>'  # note"}.items():
            expect(body.locator(selector).first).to_have_text(wanted)
        self.assertIn("<img src=x onerror=alert(1)> <script>alert(2)</script>", body.inner_text())
        self.assertIn("[bad](javascript:alert(3))", body.inner_text())
        self.assertEqual(body.locator("img, script").count(), 0)
        # What came at once took no time that could be seen: no rate is made up of it.
        self.assertNotIn("tokens/s", self.page.locator(f"{ANSWER} .facts").inner_text())
        self.assertEqual([link.get_attribute("href") for link in body.locator("a").all()],
                         ["https://example.org/x", "https://example.org/p.png"])

    def test_markdown_that_grows_is_what_it_is_at_once_and_hostile_text_ends_soon(self):
        found = self.page.evaluate("""async ([text, hostile]) => {
          const { Markdown } = await import(new URL("page/markdown.js", location.href));
          const [growing, slow, html] = [document.createElement("div"), [], (e) => e.outerHTML];
          const grown = new Markdown(growing);
          for (let n = 0; n <= text.length; ++n) {
            grown.show(text.slice(0, n));
            const whole = document.createElement("div");
            new Markdown(whole).show(text.slice(0, n));
            if (html(whole) !== html(growing)) return `other after ${n} characters`;
          }
          for (const piece of hostile) {
            const begin = performance.now();
            new Markdown(document.createElement("div")).show(piece.repeat(Math.ceil(30000 / piece.length)));
            if (performance.now() - begin > 3000) slow.push(piece);
          }
          return slow.join();
        }""", ["# A\n\ntext *b* **c\nd** `e`\n- x\n  - y\n\n  z\n1. one\n\n| a | b |\n|---|---|\n| 1 | `2` |\n\n> q\n> - r\n\n```js\nlet a = '`';\n```\nend "
               "[l](https://example.org) ~~s~~\n***\n", ["*", "**", "_a", "`", "``a", "[", "[a](", "![a](b", "> ", "- ", "  - a\n", "> - ", "|", "| a |\n|-|\n", "~~a",
                                                      "```\n", "# #", "<b>", "\\", "https://", "1. ", "a **b ", "* * ", "\n\n", "'\"`//"]])
        self.assertEqual(found, "")

    def test_reasoning_and_calls_of_tools_are_shown_and_results_sent_back(self):
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        self.answered_with(events(
            {"reasoning_content": "They ask for "}, {"reasoning_content": "weather."}, {"content": "Let me look."}, {"tool_calls": [call]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": '"Bern"}'}}]},
            coluber={"cache": {"hit_tokens": 12, "common_tokens": 19, "miss_reason": "evicted"}}))
        self.ask("Weather?", 1)
        page = self.page
        page.get_by_role("article", name="Model").get_by_text("Reasoning").click()
        expect(page.get_by_text("They ask for weather.")).to_be_visible()
        expect(page.get_by_role("region", name="Call of weather").locator("pre")).to_have_text('{\n  "city": "Bern"\n}')
        expect(page.get_by_text("dropped for want of memory")).to_be_visible()
        page.get_by_label("Result of weather").fill("rain")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.get_by_role("button", name="Send the result").click()
        messages = sent.value.post_data_json["messages"]
        self.assertEqual([message["role"] for message in messages], ["user", "assistant", "tool"])
        self.assertEqual((messages[1]["tool_calls"][0]["id"], messages[2]), ("c1", {"role": "tool", "content": "rain", "tool_call_id": "c1"}))

    def test_a_refusal_is_told_and_its_field_marked(self):
        self.answered_with(json.dumps({"error": {"message": "'top_p' must be less", "param": "top_p", "code": "invalid_argument"}}), 400)
        self.ask("x", 1)
        expect(self.page.get_by_role("alert").filter(has_text="'top_p' must be less")).to_have_count(1)
        expect(self.page.locator("#field-top_p")).to_have_attribute("aria-invalid", "true")

    # ---- keys, other models

    def test_a_server_with_keys_asks_for_one_until_it_is_right(self):
        with Server("--api-key", "secret") as server:
            page = self.open(server.address, ready=False)
            for key in ("wrong", "secret"):
                expect(page.get_by_role("dialog")).to_be_visible()
                page.get_by_label("Key", exact=True).fill(key)
                page.keyboard.press("Enter")
            page.wait_for_selector("html[data-ready]", state="attached")
            self.limit(4, page)
            self.ask("Hello", 1, page)
            expect(page.locator(f"{ANSWER} .facts")).to_have_count(1)
            page.context.close()

    def test_a_model_without_a_template_goes_on_with_texts(self):
        with tempfile.TemporaryDirectory() as folder, Server(model=base_model(folder)) as server:
            page = self.open(server.address)
            expect(page.get_by_role("button", name="Chat")).to_be_disabled()
            self.limit(8, page)
            begin = "Once upon a time there was a small house by the river, and in the house lived an old woman with her three cats. Every day"
            page.get_by_label("Text", exact=True).fill(begin)
            page.keyboard.press("Control+Enter")
            expect(page.get_by_role("button", name="Go on")).to_be_enabled()
            expect(page.locator("#text-cache .facts")).to_contain_text("8 tokens written")
            longer = page.get_by_label("Text", exact=True).input_value()
            self.assertTrue(longer.startswith(begin) and longer != begin)
            page.get_by_role("button", name="Go on").click()
            expect(page.locator("#text-cache .facts")).to_contain_text("from a kept state")
            page.get_by_label("Text", exact=True).fill("Once upon a day")
            page.keyboard.press("Control+Enter")
            expect(page.locator("#tree .node")).to_have_count(3)
            page.context.close()

    # ---- eyes and ears

    def test_everything_that_can_be_pressed_or_filled_has_a_name(self):
        self.limit(4)
        self.ask("Hello", 1)
        self.page.keyboard.press("Alt+s")
        nameless = self.page.evaluate("""() => [...document.querySelectorAll("button, input, textarea, select, summary, [tabindex]")]
            .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || (e.matches("button, summary") && e.textContent.trim())))
            .map((e) => e.outerHTML.slice(0, 80))""")
        self.assertEqual(nameless, [])
        log = self.page.get_by_role("log", name="Conversation")
        self.assertEqual((log.get_attribute("aria-live"), log.get_attribute("aria-busy")), ("polite", "false"))
        expect(self.page.locator("#announcer")).to_contain_text("complete")

    def test_turns_that_stay_are_not_read_out_again(self):
        self.limit(8)
        self.ask("Hello", 1)
        self.page.evaluate("""() => {
          window.added = [];
          new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach((node) =>
            node.nodeType === 1 && !node.closest('[aria-live="off"]') && window.added.push(node.closest("article")?.dataset.node))))
            .observe(document.getElementById("log"), { childList: true, subtree: true });
        }""")
        self.ask("And then?", 2)
        ids = [turn.get_attribute("data-node") for turn in self.page.locator(".turn").all()]
        added = set(self.page.evaluate("() => window.added"))
        self.assertEqual(added & set(ids[:2]), set())
        self.assertLessEqual(set(ids[2:]), added)

    def test_an_edit_is_not_lost_while_an_answer_comes(self):
        page = self.page
        self.limit(8)
        self.ask("Hello", 1)
        page.locator(".turn.user").get_by_role("button", name="Edit").click()
        page.get_by_label("The edited turn").fill("Hello, you")
        self.ask("And then?", 2)
        expect(page.get_by_label("The edited turn")).to_have_value("Hello, you")

    def test_text_can_be_read_in_both_schemes_and_at_a_telephones_width(self):
        self.answered_with(events({"content": "Some `code`, a [link](https://example.org) and\n\n```py\nx = 'a' # b\n```"},
                                  coluber={"cache": {"hit_tokens": 12, "common_tokens": 12, "miss_reason": "too_short"}}))
        self.ask("x", 1)
        page = self.page
        page.keyboard.press("Alt+s")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            self.assertEqual(page.evaluate(LOW_CONTRAST), [], scheme)
        page.keyboard.press("Alt+t")  # light, whatever the system says
        self.assertEqual(page.evaluate("() => getComputedStyle(document.documentElement).colorScheme"), "light")
        page.set_viewport_size({"width": 360, "height": 640})
        for panel in (None, "Alt+b", "Alt+s"):
            if panel:
                page.keyboard.press(panel)
            self.assertLessEqual(page.evaluate("() => document.documentElement.scrollWidth"), 360, panel)


# Texts that stand out from what is behind them by less than 4.5 to 1 (WCAG's AA).
LOW_CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !e.checkVisibility() || e.closest(".unseen, :disabled, option")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName}.${e.className} ${texts.currentNode.data.slice(0, 20)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


if __name__ == "__main__":
    unittest.main()
