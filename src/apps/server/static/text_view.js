// SPDX-License-Identifier: Apache-2.0
// A text that the model goes on with, for models that hold no conversations and for whoever wants it. What is edited
// and gone on with anew becomes a branch of the tree.
import { CacheView } from "./cache_view.js";
import { $, announce } from "./dom.js";
import { textOf } from "./generation.js";

export class TextView {
  constructor(page) {
    this.page = page;
    this.conversation = page.conversations.text;
    this.field = $("document");
    this.goOn = $("go-on");
    this.back = $("go-back");
    $("text-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.page.generation.isRunning) this.page.generation.stop();
      else this.write();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), $("text-form").requestSubmit();
    });
    this.back.addEventListener("click", () => this.undo());
  }

  // The node whose text this one goes on with; the longest, where there are several.
  parentOf(text) {
    let best = this.conversation.root;
    for (const node of this.conversation.nodes.values())
      if (node.role === "text" && text.startsWith(textOf(node)) && textOf(node).length > textOf(best).length) best = node;
    return best;
  }

  async write() {
    const prompt = this.field.value;
    if (prompt === "") return announce("Begin a text first");
    const node = this.conversation.add(this.parentOf(prompt), "text", "", { prompt, state: "running" });
    this.conversation.show(node);
    this.showRunning(true);
    let frame = 0;
    const grow = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        this.fill(node);
        this.field.scrollTop = this.field.scrollHeight;
      });
    };
    this.draw(node);
    try {
      await this.page.generation.text(this.conversation, node, this.page.model, grow);
    } catch (error) {
      Object.assign(node, { state: "failed", error: error.message });
    }
    cancelAnimationFrame(frame);
    this.showRunning(false);
    if (node.state === "failed" && node.content === "") this.conversation.remove(node);
    this.draw(node);
    this.conversation.save();
    announce(node.state === "failed" ? node.error : `The text went on by ${node.usage?.completion_tokens ?? 0} tokens`);
  }

  // Back to what stood there before the model wrote.
  undo() {
    const leaf = this.conversation.leaf();
    if (leaf.role !== "text") return;
    this.field.value = leaf.prompt;
    this.field.focus();
  }

  showRunning(running) {
    this.field.readOnly = running;
    this.field.setAttribute("aria-busy", String(running));
    this.goOn.textContent = running ? "Stop" : "Go on";
    this.goOn.classList.toggle("stop", running);
  }

  fill(node) {
    this.field.value = textOf(node);
    this.cache?.update();
  }

  choose(node) {
    this.conversation.show(node);
    this.conversation.save();
    this.draw(this.conversation.leaf());
    this.field.focus();
  }

  draw(node = this.conversation.leaf()) {
    const failed = node.state === "failed";
    $("text-error").hidden = !failed;
    $("text-error").textContent = failed ? node.error : "";
    this.cache = node.role === "text" ? new CacheView(node, () => this.readPrompt(node)) : null;
    $("text-cache").replaceChildren(...(this.cache ? [this.cache.element] : []));
    if (node.role === "text") this.fill(node);
    this.back.disabled = node.role !== "text" || node.state === "running";
    this.page.changed();
  }

  async readPrompt(node) {
    return (await this.page.api.post("tokenize", { prompt: node.prompt, return_token_strs: true })).token_strs;
  }
}
