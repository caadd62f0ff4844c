// SPDX-License-Identifier: Apache-2.0
// A conversation, or a text that is gone on with, as a tree of turns. Nothing is ever overwritten: whoever edits a turn
// or asks again makes a branch beside it. Kept in the browser between visits.

const STORE = "coluber.conversation.";

export class Conversation {
  constructor(kind) {
    this.kind = kind;  // "chat" or "text"
    this.clear();
    this.restore();
  }

  clear() {
    this.root = { id: 0, role: "root", parent: null, children: [], chosen: 0 };
    this.nodes = new Map([[0, this.root]]);
    this.next = 1;
  }

  // A new last child of `parent`, which becomes the one that is shown.
  add(parent, role, content, more = {}) {
    const node = { id: this.next++, role, content, parent, children: [], chosen: 0, ...more };
    parent.children.push(node);
    parent.chosen = parent.children.length - 1;
    this.nodes.set(node.id, node);
    return node;
  }

  remove(node) {
    const parent = node.parent;
    parent.children.splice(parent.children.indexOf(node), 1);
    parent.chosen = Math.max(0, Math.min(parent.chosen, parent.children.length - 1));
    for (const gone of this.below(node)) this.nodes.delete(gone.id);
  }

  *below(node) {
    yield node;
    for (const child of node.children) yield* this.below(child);
  }

  // From the first turn to `node`.
  path(node) {
    const found = [];
    for (let at = node; at && at !== this.root; at = at.parent) found.unshift(at);
    return found;
  }

  // The end of the branch that is shown.
  leaf(from = this.root) {
    while (from.children.length > 0) from = from.children[from.chosen];
    return from;
  }

  show(node) {
    for (let at = node; at.parent; at = at.parent) at.parent.chosen = at.parent.children.indexOf(at);
  }

  isShown(node) {
    for (let at = node; at.parent; at = at.parent) if (at.parent.children[at.parent.chosen] !== at) return false;
    return true;
  }

  // ---- between visits

  save() {
    const nodes = [...this.nodes.values()].map(({ pieces, view, parent, children, ...plain }) => ({
      ...plain, parent: parent?.id ?? null,
    }));
    try {
      localStorage.setItem(STORE + this.kind, JSON.stringify({ next: this.next, nodes }));
    } catch {
      // Full, or forbidden: the conversation then ends with the visit.
    }
  }

  restore() {
    try {
      const stored = JSON.parse(localStorage.getItem(STORE + this.kind));
      if (!stored) return;
      for (const node of stored.nodes) {
        if (node.id === 0) {
          this.root.chosen = node.chosen;
          continue;
        }
        node.parent = this.nodes.get(node.parent);
        node.children = [];
        if (node.state === "running") node.state = "stopped";
        node.parent.children.push(node);
        this.nodes.set(node.id, node);
      }
      this.next = stored.next;
    } catch {
      this.clear();  // of another version
    }
  }
}

export function messageOf(node) {
  const message = { role: node.role, content: node.content };
  if (node.role === "tool") message.tool_call_id = node.callId;
  if (node.calls?.length) message.tool_calls = node.calls;
  return message;
}
