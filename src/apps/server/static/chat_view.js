// SPDX-License-Identifier: Apache-2.0
// The conversation: turns of the branch that is shown, or of several side by side, and the field below.
import { $, announce, h } from "./dom.js";
import { TurnView } from "./turn_view.js";

const NEAR_END = 80;  // pixels

export class ChatView {
  // `page`: what both views share (page.js).
  constructor(page) {
    this.page = page;
    this.conversation = page.conversations.chat;
    this.views = new Map();
    this.log = $("log");
    this.field = $("message");
    this.send = $("send");
    this.field.addEventListener("input", () => this.fit());
    this.field.addEventListener("keydown", (event) => this.key(event));
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.page.generation.isRunning) this.page.generation.stop();
      else this.ask();
    });
    this.actions = {
      edit: (node, text) => this.askInstead(node, text),
      again: (node) => this.answer(node.parent),
      choose: (node) => this.choose(node),
      compare: (parent) => this.compare(parent),
      answerCalls: (node, results) => this.answerCalls(node, results),
      readPrompt: (node) => this.readPrompt(node),
    };
  }

  key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.page.generation.isRunning) this.ask();
    } else if (event.key === "ArrowUp" && this.field.value === "") {
      const last = this.conversation.path(this.conversation.leaf()).filter((node) => node.role === "user").pop();
      if (last) event.preventDefault(), this.views.get(last.id)?.edit();
    }
  }

  // ---- what is asked

  ask() {
    const text = this.field.value;
    if (text.trim() === "") return;
    this.field.value = "";
    this.fit();
    let leaf = this.conversation.leaf();
    if (leaf.state === "failed") leaf = leaf.parent;  // its message stays asked; what failed is tried anew
    this.answer(this.conversation.add(leaf, "user", text));
  }

  // False where it has to wait.
  askInstead(node, text) {
    if (this.isBusy()) return false;
    this.answer(this.conversation.add(node.parent, "user", text));
    return true;
  }

  isBusy() {
    if (this.page.generation.isRunning) announce("Wait for the answer, or stop it with Escape");
    return this.page.generation.isRunning;
  }

  answerCalls(node, results) {
    if (this.isBusy()) return;
    let last = node;
    node.calls.forEach((call, i) => (last = this.conversation.add(last, "tool", results[i], { callId: call.id })));
    this.answer(last);
  }

  async answer(parent) {
    if (this.isBusy()) return;
    const node = this.conversation.add(parent, "assistant", "", { state: "running" });
    this.conversation.show(node);
    this.draw();
    this.follow(true);
    announce("The model answers");
    let frame = 0;
    const grow = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        const atEnd = this.isAtEnd();
        this.views.get(node.id)?.grow();
        this.follow(atEnd);
      });
    };
    this.showRunning(true);
    try {
      await this.page.generation.chat(this.conversation, node, this.page.model, grow);
    } catch (error) {
      Object.assign(node, { state: "failed", error: error.message });
    }
    cancelAnimationFrame(frame);
    this.showRunning(false);
    this.finished(node);
  }

  finished(node) {
    const atEnd = this.isAtEnd();
    this.draw();
    this.follow(atEnd);
    this.conversation.save();
    const ends = { done: "The answer is complete", stopped: "Stopped", failed: node.error };
    announce(`${ends[node.state]}${node.usage ? `, ${node.usage.completion_tokens} tokens` : ""}`);
  }

  showRunning(running) {
    this.log.setAttribute("aria-busy", String(running));
    this.send.textContent = running ? "Stop" : "Send";
    this.send.classList.toggle("stop", running);
  }

  async readPrompt(node) {
    const messages = this.page.generation.messages(this.conversation, node);
    const read = await this.page.api.post("tokenize", { messages, return_token_strs: true });
    return read.token_strs;
  }

  // ---- what is shown

  choose(node) {
    this.conversation.show(node);
    this.conversation.save();
    this.draw();
    const view = this.views.get(node.id);
    view?.element.scrollIntoView({ block: "nearest" });
    view?.element.focus({ preventScroll: true });
  }

  compare(parent) {
    parent.compared = !parent.compared;
    this.draw();
  }

  // Turns that stay are the same elements as before: whoever hears the page hears only what is new.
  draw() {
    this.before = this.views;
    this.views = new Map();
    const empty = this.conversation.root.children.length === 0;
    $("welcome").hidden = !empty;
    const turns = [];
    this.drawBelow(this.conversation.root, turns);
    turns.forEach((turn, i) => this.log.children[i] === turn || this.log.insertBefore(turn, this.log.children[i] ?? null));
    while (this.log.children.length > turns.length) this.log.lastChild.remove();
    this.log.classList.toggle("wide", this.log.querySelector(".columns") !== null);
    this.page.changed();
  }

  drawBelow(parent, into) {
    for (let at = parent; at.children.length > 0; at = at.children[at.chosen]) {
      if (at.compared && at.children.length > 1) return into.push(this.columns(at));
      into.push(this.turn(at.children[at.chosen]));
    }
  }

  columns(parent) {
    return h("div", { class: "columns" }, parent.children.map((child, i) => {
      const turns = [this.turn(child)];
      this.drawBelow(child, turns);
      return h("section", { class: `column${i === parent.chosen ? " chosen" : ""}`, "aria-label": `Branch ${i + 1}` }, turns);
    }));
  }

  turn(node) {
    const known = this.before.get(node.id);
    const view = known?.node === node ? known : new TurnView(node, this.actions);
    this.views.set(node.id, view);
    if (view === known) view.update();
    return view.element;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = $("scroller");
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  // Whoever has scrolled up to read stays there.
  follow(atEnd) {
    if (atEnd) $("scroller").scrollTop = $("scroller").scrollHeight;
  }

  fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, 240)}px`;
  }
}
