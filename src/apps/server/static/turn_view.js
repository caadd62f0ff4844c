// SPDX-License-Identifier: Apache-2.0
// One turn of the conversation: what was said, its reasoning and calls of tools, what can be done with it.
import { CacheView } from "./cache_view.js";
import { button, copy, h } from "./dom.js";
import { Markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result of a tool" };
const ENDS = { length: "It ended at the limit of tokens.", content_filter: "It was ended by a filter." };

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // not whole yet
  }
}

export class TurnView {
  // `actions`: edit(node, text), again(node), choose(node), compare(node), answerCalls(node, results), readPrompt(node)
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.body = h("div", { class: "body" });
    this.markdown = new Markdown(this.body);
    this.extra = h("div", { class: "extra" });
    this.thought = h("div", { class: "thought-text" });
    this.thinking = h("details", { class: "thought", hidden: true }, h("summary", {}, "Reasoning"), this.thought);
    this.thoughtMarkdown = new Markdown(this.thought);
    this.calls = h("div", { class: "calls" });
    this.bar = h("div", { class: "bar", "aria-live": "off" });
    const isAnswer = node.role === "assistant";
    this.cache = isAnswer ? new CacheView(node, () => actions.readPrompt(node)) : null;
    this.element = h("article", { class: `turn ${node.role}`, "data-node": node.id, tabindex: "-1", "aria-label": NAMES[node.role] },
      h("h2", { class: "who" }, NAMES[node.role]), this.thinking, this.body, this.calls, this.extra, this.cache?.element, this.bar);
    this.update();
  }

  update() {
    const { node } = this;
    if (this.editing) return;
    this.element.classList.toggle("running", node.state === "running");
    if (node.role === "assistant") this.markdown.show(node.content);
    else this.body.textContent = node.content;
    this.showThought();
    this.showCalls();
    this.showExtra();
    this.cache?.update();
    this.showBar();
  }

  // While it is being written: only what grows.
  grow() {
    this.markdown.show(this.node.content);
    this.showThought();
    if (this.node.calls?.length) this.showCalls();
    this.cache.update();
  }

  showThought() {
    const { reasoning, content } = this.node;
    if (!reasoning) return;
    this.thoughtMarkdown.show(reasoning);
    if (this.thinking.hidden) {
      this.thinking.hidden = false;
      this.thinking.open = this.node.state === "running";
    }
    if (content && this.node.state === "running" && !this.folded) {
      this.folded = true;  // once: whoever opens it again wants it open
      this.thinking.open = false;
    }
  }

  showCalls() {
    const calls = this.node.calls || [];
    const unanswered = calls.length > 0 && this.node.state !== "running" && this.node.children.length === 0;
    const shown = JSON.stringify([calls, unanswered]);
    if (shown === this.shownCalls) return;
    this.shownCalls = shown;
    this.calls.replaceChildren(...calls.map((call) =>
      h("section", { class: "call", "aria-label": `Call of ${call.function.name}` },
        h("h3", {}, h("span", { class: "call-mark", "aria-hidden": "true" }, "ƒ"), call.function.name),
        h("pre", { tabindex: "0" }, h("code", {}, prettyJson(call.function.arguments))))));
    if (unanswered) this.calls.append(this.resultForm(calls));
  }

  resultForm(calls) {
    const fields = calls.map((call) => h("textarea", { rows: "2", "aria-label": `Result of ${call.function.name}`,
      placeholder: `what ${call.function.name} gave` }));
    return h("form", { class: "results", onsubmit: (event) => {
      event.preventDefault();
      this.actions.answerCalls(this.node, fields.map((field) => field.value));
    } }, fields, h("button", { type: "submit", class: "quiet" }, calls.length === 1 ? "Send the result" : "Send the results"));
  }

  showExtra() {
    const { state, error, finish } = this.node;
    const lines = [];
    if (state === "failed") lines.push(h("p", { class: "failed", role: "alert" }, error));
    if (state === "stopped") lines.push(h("p", { class: "note" }, "Stopped."));
    if (state === "done" && ENDS[finish]) lines.push(h("p", { class: "note" }, ENDS[finish]));
    if (lines.map((line) => line.textContent).join("") !== this.extra.textContent) this.extra.replaceChildren(...lines);
  }

  showBar() {
    const { node, actions } = this;
    const copying = button("Copy", "Copy this turn", () => copy(node.content, copying));
    const items = [this.branches(), node.content ? copying : null];
    if (node.state !== "running") {
      if (node.role === "user") items.push(button("Edit", "Edit this turn; what was there stays as a branch", () => this.edit()));
      if (node.role === "assistant") items.push(button("Again", "Answer again, as another branch", () => actions.again(node)));
    }
    this.bar.replaceChildren(...items.filter(Boolean));
  }

  branches() {
    const { actions } = this;
    const siblings = this.node.parent.children;
    if (siblings.length < 2) return null;
    const at = siblings.indexOf(this.node);
    const to = (step, label, name) => button(label, name, () => actions.choose(siblings[at + step]), { disabled: !siblings[at + step] });
    return h("span", { class: "branches", role: "group", "aria-label": `Branch ${at + 1} of ${siblings.length}` },
      to(-1, "‹", "The branch before"), h("span", { class: "number" }, `${at + 1}/${siblings.length}`), to(1, "›", "The next branch"),
      button("Side by side", "Show these branches side by side", () => actions.compare(this.node.parent),
        { "aria-pressed": String(Boolean(this.node.parent.compared)) }));
  }

  edit() {
    const field = h("textarea", { class: "edit", "aria-label": "The edited turn", value: this.node.content, rows: "3" });
    this.editing = true;
    const done = () => {
      this.editing = false;
      this.update();
    };
    const send = () => {
      if (field.value.trim() === "" || !this.actions.edit(this.node, field.value)) return;
      done();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation(), done();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), send();
    });
    this.body.replaceChildren(field);
    this.bar.replaceChildren(h("button", { type: "button", class: "small primary", onclick: send }, "Send as a branch"),
      button("Cancel", "Leave it as it is", done));
    field.focus();
  }
}
