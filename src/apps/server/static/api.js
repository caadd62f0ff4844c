// SPDX-License-Identifier: Apache-2.0
// Talks to the server: JSON, streams of events, the key. Paths are relative, so that a proxy may put the page anywhere.

const KEY = "coluber.key";  // for as long as the tab is open
export const BASE = new URL("../", import.meta.url);

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message || `the server answered with status ${status}`);
    this.status = status;
    this.param = body?.error?.param || "";
    this.code = body?.error?.code || "";
  }
}

export class Api {
  constructor(askForKey) {
    this.askForKey = askForKey;  // resolves to a key; called where the server wants one
    this.asking = null;
  }

  key() {
    return sessionStorage.getItem(KEY) || "";
  }

  async fetch(method, path, body, signal) {
    for (;;) {
      const key = this.key();
      const headers = {};
      if (body !== undefined) headers["Content-Type"] = "application/json";
      if (key) headers["Authorization"] = `Bearer ${key}`;
      let answer;
      try {
        answer = await fetch(new URL(path, BASE), {
          method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
        });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, { error: { message: "the server cannot be reached; is it still running?" } });
      }
      if (answer.status === 401) {
        await this.newKey(key);
        continue;
      }
      if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
      return answer;
    }
  }

  // Asks once, however many requests found that the key is wrong.
  async newKey(used) {
    if (this.key() !== used) return;
    this.asking ??= this.askForKey(used !== "").finally(() => (this.asking = null));
    sessionStorage.setItem(KEY, await this.asking);
  }

  async get(path) {
    return (await this.fetch("GET", path)).json();
  }

  async post(path, body, signal) {
    return (await this.fetch("POST", path, body, signal)).json();
  }

  async delete(path) {
    return (await this.fetch("DELETE", path)).json();
  }

  async text(path) {
    return (await this.fetch("GET", path)).text();
  }

  // The events of a stream, parsed, with the time at which each came. Throws where one is an error.
  async *stream(path, body, signal) {
    const answer = await this.fetch("POST", path, body, signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const { done, value } = await reader.read();
      const at = performance.now();
      if (done) throw new ApiError(0, { error: { message: "the connection ended in the middle of the answer" } });
      const events = (left + value).split("\n\n");
      left = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        const data = event.slice(6);
        if (data === "[DONE]") return;
        const json = JSON.parse(data);
        if (json.error) throw new ApiError(json.error.code === "timeout" ? 504 : 500, json);
        yield { event: json, at };
      }
    }
  }
}
