// SPDX-License-Identifier: Apache-2.0
// The fields beside the conversation: system prompt, sampling, tools. An empty field is not sent: the model's own
// default holds. Kept in the browser.
import { $ } from "./dom.js";

const STORE = "coluber.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed"];
const TEXTS = ["system", "stop", "tools"];

export class Settings {
  constructor(onChange) {
    this.fields = Object.fromEntries([...NUMBERS, ...TEXTS].map((name) => [name, $(`field-${name}`)]));
    this.load();
    for (const [name, field] of Object.entries(this.fields))
      field.addEventListener("input", () => {
        this.mark(name, "");
        this.save();
        onChange();
      });
    $("settings-reset").addEventListener("click", () => {
      for (const [name, field] of Object.entries(this.fields)) field.value = "", this.mark(name, "");
      this.save();
      onChange();
    });
  }

  load() {
    try {
      const stored = JSON.parse(localStorage.getItem(STORE)) || {};
      for (const [name, field] of Object.entries(this.fields)) field.value = stored[name] ?? "";
    } catch {
      // Nothing stored, or nothing that can be read.
    }
  }

  save() {
    const values = Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value]));
    try {
      localStorage.setItem(STORE, JSON.stringify(values));
    } catch {
      // Then they hold for this visit.
    }
  }

  get system() {
    return this.fields.system.value.trim() === "" ? "" : this.fields.system.value;
  }

  // What goes into a request. Throws where a field cannot be read; the field then says so.
  sampling() {
    const request = {};
    for (const name of NUMBERS) {
      const field = this.fields[name];
      if (field.validity.badInput || !field.validity.valid) this.refuse(name, field.validationMessage);
      if (field.value !== "") request[name] = Number(field.value);
    }
    const stops = this.fields.stop.value.split("\n").filter((line) => line !== "");
    if (stops.length > 0) request.stop = stops;
    return request;
  }

  tools() {
    const text = this.fields.tools.value.trim();
    if (text === "") return null;
    try {
      const tools = JSON.parse(text);
      if (Array.isArray(tools)) return tools;
      this.refuse("tools", "expected a list: [{\"type\": \"function\", \"function\": {...}}]");
    } catch (error) {
      this.refuse("tools", error.message);
    }
    return null;
  }

  refuse(name, message) {
    this.mark(name, message);
    throw new Error(`The field “${this.label(name)}” cannot be used: ${message}`);
  }

  label(name) {
    return document.querySelector(`label[for="field-${name}"]`).textContent;
  }

  // The server, or a check here, found something wrong with a field.
  mark(name, message) {
    const field = this.fields[name];
    if (!field) return;
    if (message) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    const note = $(`note-${name}`);
    if (note) note.textContent = message;
  }
}
