// SPDX-License-Identifier: Apache-2.0
// Has the server write a node of the tree: makes the request, reads the stream into the node, tells of each change.
import { messageOf } from "./conversation.js";

const SHORTEST_MS = 30;  // over which a rate says something
const TEXT_TOKENS = 200;  // a text goes on by so many where nothing else is asked for

export class Generation {
  constructor(api, sessions, settings) {
    this.api = api;
    this.sessions = sessions;
    this.settings = settings;
    this.running = null;  // {node, stop}
  }

  get isRunning() {
    return this.running !== null;
  }

  stop() {
    this.running?.abort.abort();
  }

  // The conversation up to `node`, whose parent is the last turn before the answer.
  messages(conversation, node) {
    const turns = conversation.path(node.parent).filter((turn) => turn.state !== "failed").map(messageOf);
    return this.settings.system ? [{ role: "system", content: this.settings.system }, ...turns] : turns;
  }

  async chat(conversation, node, model, onChange) {
    const tools = this.settings.tools();
    const made = { model, system: this.settings.system, tools: JSON.stringify(tools) };
    const alike = (session) => Object.keys(made).every((key) => session[key] === made[key]);
    const request = { model, ...this.settings.sampling() };
    if (tools) request.tools = tools;
    await this.run(node, onChange, async (signal) => {
      const session = await this.sessions.begin(node.parent, alike);
      const whole = { ...request, messages: this.messages(conversation, node) };
      if (!session) return this.read(node, "v1/chat/completions", whole, signal, onChange);
      const skipped = session.from ? conversation.path(session.from).length + (made.system ? 1 : 0) : 0;
      const rest = { ...request, messages: whole.messages.slice(skipped), session_id: session.id };
      await this.inSession(node, { ...session, made }, "v1/chat/completions", rest, whole, signal, onChange);
    });
  }

  async text(conversation, node, model, onChange) {
    const made = { model, system: "", tools: "null" };
    const request = { model, max_tokens: TEXT_TOKENS, ...this.settings.sampling() };
    await this.run(node, onChange, async (signal) => {
      const whole = { ...request, prompt: node.prompt };
      const parent = node.parent;
      const session = await this.sessions.begin(parent, (held) => held.model === model && parent.session === held);
      if (!session) return this.read(node, "v1/completions", whole, signal, onChange);
      const rest = { ...request, session_id: session.id };
      const more = session.from ? node.prompt.slice(textOf(session.from).length) : node.prompt;
      if (more) rest.prompt = more;
      await this.inSession(node, { ...session, made }, "v1/completions", rest, whole, signal, onChange);
    });
  }

  // In the session, or as a whole prompt where the session cannot be had after all.
  async inSession(node, session, path, rest, whole, signal, onChange) {
    this.sessions.moved(session.id);
    try {
      await this.read(node, path, rest, signal, onChange);
      node.via = session.kind;
      if (node.sessionTokens) this.sessions.stands(session, node, node.sessionTokens);
    } catch (error) {
      if (error.name === "AbortError" || node.content || ![400, 404, 409].includes(error.status)) throw error;
      await this.read(node, path, whole, signal, onChange);
    }
  }

  async run(node, onChange, work) {
    const abort = new AbortController();
    this.running = { node, abort };
    Object.assign(node, { state: "running", error: "", pieces: [] });
    try {
      await work(abort.signal);
      node.state = "done";
    } catch (error) {
      node.state = error.name === "AbortError" ? "stopped" : "failed";
      node.error = error.message;
      if (error.param) this.settings.mark(error.param, error.message);
    } finally {
      this.running = null;
      onChange();
    }
  }

  async read(node, path, request, signal, onChange) {
    const body = { ...request, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    const begun = performance.now();
    let first = 0, firstTokens = 0;
    for await (const { event, at } of this.api.stream(path, body, signal)) {
      const choice = event.choices?.[0];
      if (choice) this.take(node, choice);
      if (event.usage) node.usage = event.usage;
      if (event.coluber?.cache) node.cache = event.coluber.cache;
      if (event.coluber?.session) node.sessionTokens = event.coluber.session.tokens;
      const written = event.usage?.completion_tokens ?? 0;
      if (written > 0 && first === 0) {
        first = at;
        node.firstMs = at - begun;
      }
      // Tokens that came together with the first one took no time that could be seen.
      if (at === first) firstTokens = written;
      else if (choice && at - first >= SHORTEST_MS) node.rate = (1000 * (written - firstTokens)) / (at - first);
      onChange();
    }
  }

  take(node, choice) {
    const delta = choice.delta ?? { content: choice.text };
    if (delta.content) {
      node.content += delta.content;
      node.pieces.push(delta.content);
    }
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning) {
      node.reasoning = (node.reasoning ?? "") + reasoning;
      node.pieces.push(reasoning);
    }
    for (const part of delta.tool_calls ?? []) takeCall(node, part);
    if (choice.finish_reason) node.finish = choice.finish_reason;
  }
}

// Arguments of a call come in pieces; the first one has its name.
function takeCall(node, part) {
  node.calls ??= [];
  const call = (node.calls[part.index ?? node.calls.length] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
  if (part.id) call.id = part.id;
  call.function.name += part.function?.name ?? "";
  call.function.arguments += part.function?.arguments ?? "";
}

export function textOf(node) {
  return node.role === "root" ? "" : node.prompt + node.content;
}
