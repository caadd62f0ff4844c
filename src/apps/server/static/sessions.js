// SPDX-License-Identifier: Apache-2.0
// Lets turns go on from sessions of the server where it has them: a turn that follows the last one goes on in its
// session; a branch is a fork of it, rolled back to where the two part. Where that cannot be (no sessions on this
// server, or the session is gone) all is sent as one prompt, and the prefix cache does what it can.

export class Sessions {
  constructor(api) {
    this.api = api;
    this.there = false;
    this.ids = new Map();  // session -> the node at whose end it stands
  }

  async find() {
    try {
      await this.api.get("v1/sessions");
      this.there = true;
    } catch {
      this.there = false;
    }
  }

  // The nearest turn at or above `node` whose session can be gone on from. `fits` says whether it was made alike.
  nearest(node, fits) {
    for (let at = node; at && at.role !== "root"; at = at.parent) if (at.session && fits(at.session)) return at;
    return null;
  }

  // {id, from, kind}: the session that stands at the end of `from`; null where there is none.
  async begin(node, fits) {
    if (!this.there) return null;
    const from = this.nearest(node, fits);
    try {
      if (!from) {
        const made = await this.api.post("v1/sessions", {});
        return { id: made.id, from: null, kind: "new" };
      }
      const { id, tokens } = from.session;
      if (this.ids.get(id) === from.id) return { id, from, kind: "continued" };
      const fork = await this.api.post(`v1/sessions/${id}/fork`, {});
      this.ids.set(fork.id, 0);
      if (fork.tokens !== tokens) await this.api.post(`v1/sessions/${fork.id}/rollback`, { tokens });
      return { id: fork.id, from, kind: "forked" };
    } catch {
      if (from) from.session = null;
      return null;
    }
  }

  // The answer `node` has ended in this session.
  stands(session, node, tokens) {
    this.ids.set(session.id, node.id);
    node.session = { id: session.id, tokens, ...session.made };
  }

  moved(id) {
    this.ids.set(id, 0);
  }

  restore(nodes) {
    const furthest = new Map();
    for (const node of nodes) {
      if (!node.session) continue;
      const other = furthest.get(node.session.id);
      if (!other || other.session.tokens < node.session.tokens) furthest.set(node.session.id, node);
    }
    for (const [id, node] of furthest) this.ids.set(id, node.id);
  }

  end() {
    for (const id of this.ids.keys()) this.api.delete(`v1/sessions/${id}`).catch(() => {});
    this.ids.clear();
  }
}
