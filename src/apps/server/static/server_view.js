// SPDX-License-Identifier: Apache-2.0
// What the server does now, from /metrics: memory of states, how much of the prompts came from them, who runs and waits.
import { $, h } from "./dom.js";

const EVERY_MS = 3000;

export function readMetrics(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const found = line.match(/^([a-z_:]+)(?:\{(.*?)\})? (\S+)$/i);
    if (!found) continue;
    const kind = /kind="([^"]*)"/.exec(found[2] ?? "")?.[1];
    values[kind ? `${found[1]} ${kind}` : found[1]] = Number(found[3]);
  }
  return values;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1) : 0;
  const value = bytes / 1024 ** power;
  return `${value < 10 && power > 0 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

function line(name, value) {
  return [h("dt", {}, name), h("dd", {}, value)];
}

export class ServerView {
  constructor(api) {
    this.api = api;
    this.panel = $("server");
    this.panel.addEventListener("toggle", () => this.tick());
    setInterval(() => this.tick(), EVERY_MS);
  }

  async tick() {
    if (!this.panel.open || document.hidden || $("settings").hidden) return;
    try {
      this.draw(readMetrics(await this.api.text("metrics")));
    } catch {
      $("server-facts").replaceChildren(h("dt", {}, "The server cannot be reached."));
    }
  }

  draw(m) {
    const all = m["coluber:memory_bytes"] || 0;
    const kept = (m["coluber:state_bytes cached_recurrent"] || 0) + (m["coluber:state_bytes cached_attention"] || 0);
    const used = (m["coluber:state_bytes recurrent"] || 0) + (m["coluber:state_bytes attention"] || 0);
    const asked = m["vllm:prefix_cache_queries_total"] || 0;
    const found = m["vllm:prefix_cache_hits_total"] || 0;
    const meter = h("meter", { min: "0", max: String(Math.max(all, 1)), value: String(used), "aria-label": "Memory of states in use" });
    $("server-facts").replaceChildren(
      ...line("Memory of states", [`${size(used)} of ${size(all)}`, meter]),
      ...line("Kept for later prompts", size(kept)),
      ...line("Prompt tokens from states", asked > 0 ? `${Math.round((100 * found) / asked)} % of ${asked.toLocaleString("en")}` : "none yet"),
      ...line("Running, waiting", `${m["vllm:num_requests_running"] || 0}, ${m["vllm:num_requests_waiting"] || 0}`),
      ...line("Tokens written", (m["vllm:generation_tokens_total"] || 0).toLocaleString("en")));
  }
}
