// SPDX-License-Identifier: Apache-2.0
// The tree of the conversation beside it: one line a turn, further in where branches part.
import { strip } from "./cache_view.js";
import { h } from "./dom.js";

const MARKS = { user: "›", assistant: "‹", tool: "ƒ", text: "¶" };
const NAMES = { user: "You", assistant: "Model", tool: "Tool", text: "Text" };

function words(node) {
  const text = (node.content || node.calls?.map((call) => call.function.name).join(", ") || "").replace(/\s+/g, " ").trim();
  return text.slice(0, 60) || (node.state === "running" ? "…" : "(empty)");
}

export class TreeView {
  constructor(into, conversation, choose) {
    this.into = into;
    this.conversation = conversation;
    this.choose = choose;
    into.addEventListener("keydown", (event) => this.move(event));
  }

  update() {
    const { root } = this.conversation;
    if (root.children.length === 0) {
      this.into.replaceChildren(h("p", { class: "hint" }, "Every turn can be edited or asked again. What was there before stays, as a branch."));
      return;
    }
    this.into.replaceChildren(this.list(root));
  }

  // Turns that follow each other without a branch stand below each other; each branch is a list of its own.
  list(parent) {
    const items = [];
    let at = parent;
    while (at.children.length === 1) items.push(h("li", {}, this.item((at = at.children[0]))));
    if (at.children.length > 1)
      items.push(h("li", {}, h("ul", { class: "forks", "aria-label": `${at.children.length} branches` },
        at.children.map((child) => h("li", { class: "fork" }, h("ul", {}, h("li", {}, this.item(child)), ...this.list(child).childNodes))))));
    return h("ul", {}, items);
  }

  item(node) {
    const shown = this.conversation.isShown(node);
    const last = shown && node === this.conversation.leaf();
    return h("button", { type: "button", class: `node ${node.role}${shown ? " shown" : ""}`, "data-node": node.id,
      "aria-current": last ? "true" : null, "aria-label": `${NAMES[node.role]}: ${words(node)}${shown ? ", shown" : ""}`,
      onclick: () => this.choose(node) },
      h("span", { class: "mark", "aria-hidden": "true" }, MARKS[node.role]), h("span", { class: "words" }, words(node)),
      node.usage ? strip(node.usage, "mini") : null);
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...this.into.querySelectorAll("button.node")];
    const next = all[all.indexOf(document.activeElement) + step];
    if (next) event.preventDefault(), next.focus();
  }
}
