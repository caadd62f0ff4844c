// SPDX-License-Identifier: Apache-2.0
// Builds elements. Text only ever becomes text nodes: no markup is read anywhere on the page.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

export function button(label, name, onclick, more = {}) {
  return h("button", { type: "button", class: "quiet", title: name, "aria-label": name, onclick, ...more }, label);
}

// Told to readers of the screen, seen by nobody.
export function announce(text) {
  $("announcer").textContent = text;
}

export async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers keep the clipboard from pages without TLS.
    const area = h("textarea", { class: "unseen", value: text });
    from.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from.focus();
  }
  announce("Copied");
  const before = from.textContent;
  from.textContent = "Copied";
  setTimeout(() => (from.textContent = before), 1200);
}
