// SPDX-License-Identifier: Apache-2.0
// Puts the page together: what is served, which view is shown, panels, keys of the keyboard, light and dark.
import { Api, BASE } from "./api.js";
import { ChatView } from "./chat_view.js";
import { Conversation } from "./conversation.js";
import { $, announce, h } from "./dom.js";
import { Generation } from "./generation.js";
import { ServerView } from "./server_view.js";
import { Sessions } from "./sessions.js";
import { Settings } from "./settings.js";
import { TextView } from "./text_view.js";
import { TreeView } from "./tree_view.js";

const THEMES = ["auto", "light", "dark"];
const THEME_NAMES = { auto: "as the system", light: "light", dark: "dark" };

function remember(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(`coluber.${name}`, value);
    return localStorage.getItem(`coluber.${name}`);
  } catch {
    return null;
  }
}

class Page {
  constructor() {
    this.api = new Api((wasWrong) => this.askForKey(wasWrong));
    this.sessions = new Sessions(this.api);
    this.settings = new Settings(() => this.changed());
    this.generation = new Generation(this.api, this.sessions, this.settings);
    this.conversations = { chat: new Conversation("chat"), text: new Conversation("text") };
    this.views = { chat: new ChatView(this), text: new TextView(this) };
    this.trees = Object.fromEntries(Object.entries(this.views).map(([kind, view]) => [
      kind, new TreeView($("tree"), this.conversations[kind], (node) => this.choose(view, node)),
    ]));
    this.model = "";
    this.length = 0;
    this.kind = "chat";
    this.server = new ServerView(this.api);
  }

  async begin() {
    this.setTheme(remember("theme") || "auto");
    $("address").textContent = new URL("v1", BASE).href;
    this.wire();
    this.togglePanel("tree-panel", remember("tree") !== "closed" && innerWidth > 1100);
    this.togglePanel("settings", remember("settings") === "open" && innerWidth > 1100);
    try {
      await this.loadModels();
    } catch (error) {
      $("welcome-text").textContent = error.message;
      return;
    }
    await this.sessions.find();
    this.sessions.restore([...this.conversations.chat.nodes.values(), ...this.conversations.text.nodes.values()]);
    document.documentElement.dataset.ready = "true";
  }

  async loadModels() {
    this.models = (await this.api.get("v1/models")).data;
    $("model").replaceChildren(...this.models.map((model) => h("option", { value: model.id }, model.id)));
    $("model").disabled = this.models.length < 2;
    this.useModel(this.models[0]);
  }

  useModel(model) {
    this.model = model.id;
    this.length = model.max_model_len;
    document.title = `${model.id} · Coluber`;
    $("welcome-title").textContent = model.id;
    $("kind-chat").disabled = !model.has_chat_template;
    $("send").disabled = $("go-on").disabled = !model.has_tokenizer;
    $("welcome-text").textContent = model.has_tokenizer
      ? `Up to ${model.max_model_len.toLocaleString("en")} tokens of conversation. What has been read is kept as states, so that nothing is read twice.`
      : "This model has no tokenizer, so it can neither read nor write text.";
    this.show(model.has_chat_template ? remember("kind") || "chat" : "text");
  }

  // ---- what is shown

  show(kind) {
    this.kind = kind;
    for (const each of ["chat", "text"]) {
      $(`kind-${each}`).setAttribute("aria-pressed", String(each === kind));
      $(`${each}-view`).hidden = each !== kind;
    }
    $("system-row").hidden = $("tools-row").hidden = kind !== "chat";
    this.views[kind].draw();
  }

  changed() {
    this.trees[this.kind].update();
    const used = this.conversations[this.kind].leaf().usage?.total_tokens ?? 0;
    $("context").textContent = used && this.length ? `${used.toLocaleString("en")} of ${this.length.toLocaleString("en")} tokens` : "";
  }

  choose(view, node) {
    if (this.generation.isRunning) return announce("Wait for the answer, or stop it with Escape");
    view.choose(node);
    if (innerWidth <= 800) this.togglePanel("tree-panel", false);
  }

  restart() {
    if (this.generation.isRunning) this.generation.stop();
    this.sessions.end();
    this.conversations[this.kind].clear();
    this.conversations[this.kind].save();
    if (this.kind === "text") $("document").value = "";
    this.views[this.kind].draw();
    $(this.kind === "chat" ? "message" : "document").focus();
    announce("A new beginning");
  }

  togglePanel(id, open = $(id).hidden) {
    $(id).hidden = !open;
    $(`toggle-${id}`).setAttribute("aria-expanded", String(open));
    $("layout").classList.toggle(`with-${id}`, open);
    if (open && id === "settings") this.server.tick();
    if (open && innerWidth <= 800) this.togglePanel(id === "settings" ? "tree-panel" : "settings", false);
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    remember("theme", theme);
    const name = `Colours: ${THEME_NAMES[theme]}`;
    $("theme").setAttribute("aria-label", name);
    $("theme").title = name;
  }

  // ---- the key

  askForKey(wasWrong) {
    const dialog = $("key-dialog");
    $("key-note").textContent = wasWrong ? "This key is not known to the server." : "";
    return new Promise((resolve) => {
      $("key-form").onsubmit = (event) => {
        event.preventDefault();
        const key = $("key").value.trim();
        if (key === "") return;
        $("key").value = "";
        dialog.close();
        resolve(key);
      };
      dialog.oncancel = (event) => event.preventDefault();  // nothing works without it
      dialog.showModal();
    });
  }

  // ---- hands

  wire() {
    $("toggle-tree-panel").addEventListener("click", () => {
      this.togglePanel("tree-panel");
      remember("tree", $("tree-panel").hidden ? "closed" : "open");
    });
    $("toggle-settings").addEventListener("click", () => {
      this.togglePanel("settings");
      remember("settings", $("settings").hidden ? "closed" : "open");
    });
    for (const id of ["tree-panel", "settings"]) $(`close-${id}`).addEventListener("click", () => {
      this.togglePanel(id, false);
      $(`toggle-${id}`).focus();
    });
    $("new").addEventListener("click", () => this.restart());
    $("help").addEventListener("click", () => $("keys-dialog").showModal());
    $("close-keys").addEventListener("click", () => $("keys-dialog").close());
    $("theme").addEventListener("click", () => {
      this.setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
      announce($("theme").title);
    });
    $("model").addEventListener("change", () => this.useModel(this.models.find((model) => model.id === $("model").value)));
    for (const kind of ["chat", "text"]) $(`kind-${kind}`).addEventListener("click", () => {
      if (this.generation.isRunning) return;
      remember("kind", kind);
      this.show(kind);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    // Panels that would cover what is read close where the window gets narrow.
    matchMedia("(max-width: 1100px)").addEventListener("change", (event) => {
      if (event.matches) for (const id of ["tree-panel", "settings"]) this.togglePanel(id, false);
    });
  }

  key(event) {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
    const act = {
      "Alt+KeyN": () => this.restart(),
      "Alt+KeyB": () => $("toggle-tree-panel").click(),
      "Alt+KeyS": () => $("toggle-settings").click(),
      "Alt+KeyT": () => $("theme").click(),
    }[event.altKey && !event.ctrlKey && !event.metaKey ? `Alt+${event.code}` : ""];
    if (act) {
      event.preventDefault();
      act();
    } else if (event.key === "Escape" && this.generation.isRunning) {
      this.generation.stop();
    } else if (event.key === "/" && !typing) {
      event.preventDefault();
      $(this.kind === "chat" ? "message" : "document").focus();
    } else if (event.key === "?" && !typing) {
      $("keys-dialog").showModal();
    }
  }
}

new Page().begin();
