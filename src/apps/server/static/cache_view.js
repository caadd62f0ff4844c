// SPDX-License-Identifier: Apache-2.0
// Draws what the cache did for an answer: which of its tokens came from a kept state, which were computed, which were
// written, and why it was not more.
import { button, h } from "./dom.js";

const MAX_TOKENS = 1500;  // that are shown one by one

const count = (n) => n.toLocaleString("en");
const tokens = (n) => `${count(n)} token${n === 1 ? "" : "s"}`;

function reasonText(cache) {
  const common = tokens(cache.common_tokens);
  const texts = {
    disabled: "This server keeps no states (prefix caching is off).",
    too_short: "The prompt is so short that no state can lie before its last token.",
    no_common_prefix: "No earlier request began like this one.",
    different_adapter_or_salt: "An earlier request began like this one, under another cache salt.",
    no_checkpoint_before_divergence:
      `An earlier request began with the same ${common}, but no state of it was kept there. The next one like it finds one.`,
    evicted: `The state behind the same ${common} was kept, and dropped for want of memory.`,
  };
  return texts[cache.miss_reason] || (cache.miss_reason ? `Reason: ${cache.miss_reason}.` : "");
}

const SESSION_TEXTS = {
  new: "A session was begun.",
  continued: "Went on in its session.",
  forked: "A fork of the session, rolled back to where this branch begins.",
};

function speed(node) {
  const parts = [];
  if (node.rate) parts.push(`${node.rate.toFixed(node.rate < 10 ? 1 : 0)} tokens/s`);
  if (node.firstMs !== undefined) parts.push(`first after ${node.firstMs < 10 ? node.firstMs.toFixed(1) : Math.round(node.firstMs)} ms`);
  return parts;
}

function segment(kind, amount, label) {
  const part = h("span", { class: `segment ${kind}`, title: label });
  part.style.flexGrow = amount;
  return part;
}

// The parts of a prompt and its answer: [{kind, amount, label}].
export function parts(usage) {
  const cached = Math.min(usage.prompt_tokens_details?.cached_tokens ?? 0, usage.prompt_tokens);
  return [
    { kind: "cached", amount: cached, label: `${tokens(cached)} from a kept state` },
    { kind: "computed", amount: usage.prompt_tokens - cached, label: `${tokens(usage.prompt_tokens - cached)} computed` },
    { kind: "written", amount: usage.completion_tokens, label: `${tokens(usage.completion_tokens)} written` },
  ];
}

export function strip(usage, name = "strip") {
  return h("span", { class: name, "aria-hidden": "true" },
    parts(usage).filter((part) => part.amount > 0).map((part) => segment(part.kind, part.amount, part.label)));
}

export class CacheView {
  // `readPrompt` resolves to the texts of the prompt's tokens.
  constructor(node, readPrompt) {
    this.node = node;
    this.readPrompt = readPrompt;
    this.element = h("div", { class: "cache", role: "group", "aria-live": "off", "aria-label": "What the cache did" });
    this.details = h("div", { class: "tokens", hidden: true });
    this.update();
  }

  update() {
    const { usage, cache, via } = this.node;
    if (!usage) return this.element.replaceChildren();
    const facts = [...parts(usage).filter((part) => part.amount > 0).map((part) =>
      h("span", { class: `fact ${part.kind}` }, part.label)), ...speed(this.node).map((text) => h("span", { class: "fact" }, text))];
    const why = [via ? SESSION_TEXTS[via] : "", cache ? reasonText(cache) : ""].filter(Boolean).join(" ");
    const running = this.node.state === "running";
    this.toggle = running ? null : button("Tokens", "Show the tokens", () => this.open(), { "aria-expanded": String(!this.details.hidden) });
    this.element.replaceChildren(strip(usage), h("p", { class: "facts" }, facts, this.toggle),
      ...(why && !running ? [h("p", { class: "why" }, why)] : []), this.details);
  }

  async open() {
    this.details.hidden = !this.details.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.details.hidden));
    if (this.details.hidden) return;
    this.details.replaceChildren("Reading…");
    try {
      this.draw(await this.readPrompt());
    } catch (error) {
      this.details.replaceChildren(`The tokens cannot be shown: ${error.message}`);
    }
  }

  draw(prompt) {
    const { usage } = this.node;
    const [cached] = parts(usage);
    const fits = prompt.length === usage.prompt_tokens;
    const from = Math.max(0, Math.min(prompt.length, fits ? cached.amount : prompt.length) - MAX_TOKENS);
    const chips = [];
    if (from > 0) chips.push(h("span", { class: "skipped" }, `… ${tokens(from)} before …`));
    prompt.slice(from, from + 2 * MAX_TOKENS).forEach((text, i) => {
      const at = from + i;
      if (fits && at === cached.amount && at > 0) chips.push(h("span", { class: "mark" }, `state at ${count(at)}`));
      chips.push(chip(text, fits ? (at < cached.amount ? "cached" : "computed") : "unknown", at));
    });
    (this.node.pieces || [this.node.content]).slice(0, MAX_TOKENS).forEach((text) => chips.push(chip(text, "written")));
    const note = fits ? null : h("p", { class: "why" },
      `The session holds ${tokens(usage.prompt_tokens)}; read anew the conversation has ${count(prompt.length)}, so they cannot be told apart here.`);
    this.details.replaceChildren(...[note, h("p", { class: "chips" }, chips)].filter(Boolean));
  }
}

function chip(text, kind, at) {
  const shown = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "·");
  return h("span", { class: `chip ${kind}`, title: at === undefined ? kind : `token ${at + 1}, ${kind === "cached" ? "from a kept state" : kind}` }, shown || "∅");
}
