// SPDX-License-Identifier: Apache-2.0
// Markdown as elements: headings, lists, quotes, tables, code, emphasis, links. What is no markdown stays the text that
// it is, markup included. Pictures become links: nothing is loaded from elsewhere.
import { copy, h } from "./dom.js";
import { highlight } from "./highlight.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$|^\s*\|\s*:?-+:?\s*\|\s*$/;
const MAX_DEPTH = 12;

// ---- blocks: the text cut into {kind, source} ------------------------------------------------------------------------

function begins(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || QUOTE.test(line);
}

function takeFence(lines, at) {
  const [, fence] = lines[at].match(FENCE);
  const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) ++end;
  return Math.min(end + 1, lines.length);
}

function takeList(lines, at) {
  const indent = lines[at].match(ITEM)[1].length;
  const ordered = /\d/.test(lines[at].match(ITEM)[2]);
  let end = at + 1;
  for (; end < lines.length; ++end) {
    const line = lines[end];
    if (line.trim() === "") {
      const next = lines[end + 1];
      const goesOn = next !== undefined && (/^\s{2,}\S/.test(next) || (ITEM.test(next) && next.match(ITEM)[1].length >= indent));
      if (!goesOn) break;
      continue;
    }
    const item = line.match(ITEM);
    if (item && item[1].length <= indent && /\d/.test(item[2]) !== ordered) break;
    if (!item && !/^\s{2,}/.test(line) && (begins(line) || lines[end - 1].trim() === "")) break;
  }
  return end;
}

function takeWhile(lines, at, test) {
  let end = at + 1;
  while (end < lines.length && test(lines[end])) ++end;
  return end;
}

export function blocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const found = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    let kind = "paragraph", end;
    if (line.trim() === "") {
      ++at;
      continue;
    } else if (FENCE.test(line)) {
      kind = "code", end = takeFence(lines, at);
    } else if (HEADING.test(line)) {
      kind = "heading", end = at + 1;
    } else if (RULE.test(line)) {
      kind = "rule", end = at + 1;
    } else if (ITEM.test(line)) {
      kind = "list", end = takeList(lines, at);
    } else if (QUOTE.test(line)) {
      kind = "quote", end = takeWhile(lines, at, (next) => QUOTE.test(next) || (next.trim() !== "" && !begins(next)));
    } else if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])) {
      kind = "table", end = takeWhile(lines, at + 1, (next) => next.includes("|"));
    } else {
      end = takeWhile(lines, at, (next) => next.trim() !== "" && !begins(next));
    }
    found.push({ kind, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

// ---- elements of blocks -------------------------------------------------------------------------------------------------

function code(source) {
  const lines = source.split("\n");
  const [, fence, language] = lines[0].match(FENCE);
  const closed = lines.length > 1 && new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`).test(lines.at(-1));
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copying = h("button", { type: "button", class: "quiet", "aria-label": "Copy code" }, "Copy");
  copying.addEventListener("click", () => copy(text, copying));
  return h("div", { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, language || "text"), copying),
    h("pre", { tabindex: "0", "aria-label": `Code, ${language || "text"}` }, h("code", {}, highlight(text, language))));
}

function list(source, depth) {
  const lines = source.split("\n");
  const first = lines[0].match(ITEM);
  const ordered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length <= first[1].length + 1) items.push({ width: item[0].length - item[3].length, lines: [item[3]] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, line.length - line.trimStart().length)));
  }
  const start = ordered ? parseInt(first[2], 10) : 1;
  return h(ordered ? "ol" : "ul", { start: start !== 1 ? start : null }, items.map((item) => {
    const box = item.lines[0].match(/^\[([ xX])\]\s+(.*)$/);
    if (box) item.lines[0] = `${box[1] === " " ? "☐" : "☑"} ${box[2]}`;
    const inner = blocks(item.lines.join("\n"));
    const tight = inner.length > 0 && inner[0].kind === "paragraph";
    const rest = (tight ? inner.slice(1) : inner).map((block) => element(block, depth + 1));
    return h("li", {}, tight ? inline(inner[0].source) : [], rest);
  }));
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function table(source) {
  const [head, rule, ...rows] = source.split("\n");
  const alignment = cells(rule).map((cell) => (/^:.*:$/.test(cell) ? "center" : /:$/.test(cell) ? "right" : "left"));
  const columns = cells(head).length;
  const row = (line, tag) => {
    const texts = cells(line);
    return h("tr", {}, Array.from({ length: columns }, (_, i) =>
      h(tag, { class: `align-${alignment[i] || "left"}`, scope: tag === "th" ? "col" : null }, inline(texts[i] || ""))));
  };
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, rows.map((line) => row(line, "td")))));
}

function element(block, depth = 0) {
  const { kind, source } = block;
  if (depth > MAX_DEPTH) return h("p", {}, source);
  if (kind === "code") return code(source);
  if (kind === "rule") return h("hr");
  if (kind === "list") return list(source, depth);
  if (kind === "table") return table(source);
  if (kind === "heading") {
    const [, marks, text] = source.match(HEADING);
    return h(`h${Math.min(6, marks.length + 2)}`, {}, inline(text));  // below the page's own headings
  }
  if (kind === "quote") {
    const inner = source.split("\n").map((line) => (line.match(QUOTE) || [null, line])[1]).join("\n");
    return h("blockquote", {}, blocks(inner).map((block) => element(block, depth + 1)));
  }
  return h("p", {}, inline(source));
}

// ---- within a line ------------------------------------------------------------------------------------------------------

const INLINE = new RegExp([
  "\\\\([\\\\`*_{}\\[\\]()#+\\-.!|~<>])",                      // 1: an escaped mark
  "(`+)([^`]|[^`][\\s\\S]*?[^`])\\2(?!`)",                     // 2, 3: code
  "!?\\[([^\\[\\]]*)\\]\\(([^()\\s]*(?:\\([^()\\s]*\\)[^()\\s]*)*)(?:\\s+\"[^\"]*\")?\\)",  // 4, 5: a link
  "\\*\\*(?=\\S)([\\s\\S]*?\\S)\\*\\*(?!\\*)",                 // 6: bold
  "(?<![\\w_])__(?=\\S)([\\s\\S]*?\\S)__(?![\\w_])",           // 7
  "\\*(?=[^\\s*])([^*]*[^\\s*])\\*(?!\\*)",                    // 8: italic
  "(?<![\\w_])_(?=[^\\s_])([^_]*[^\\s_])_(?![\\w_])",          // 9
  "~~(?=\\S)([\\s\\S]*?\\S)~~",                                // 10: struck out
  "(https?:\\/\\/[^\\s<>()\"'`]*[^\\s<>()\"'`.,;:!?*_~])",     // 11: an address
  "( {2,}|\\\\)\\n",                                           // 12: a line's end that is meant
].join("|"), "g");

function link(text, address) {
  let target;
  try {
    target = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(target.protocol)) return null;
  return h("a", { href: target.href, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}

export function inline(text, depth = 0) {
  const parts = [];
  let at = 0;
  if (depth > MAX_DEPTH) return [text];
  const within = (inner) => inline(inner, depth + 1);
  for (const found of text.matchAll(INLINE)) {
    let made = null;
    if (found[1]) made = found[1];
    else if (found[3] !== undefined) made = h("code", {}, found[3].replace(/^ (.*) $/s, "$1"));
    else if (found[5] !== undefined) made = link(found[4] || found[5], found[5]);
    else if (found[6] || found[7]) made = h("strong", {}, within(found[6] || found[7]));
    else if (found[8] || found[9]) made = h("em", {}, within(found[8] || found[9]));
    else if (found[10]) made = h("s", {}, within(found[10]));
    else if (found[11]) made = link(found[11], found[11]);
    else if (found[12] !== undefined) made = h("br");
    if (made === null) continue;
    parts.push(text.slice(at, found.index), made);
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts.filter((part) => part !== "");
}

// Keeps an element's content at the text's elements; of a text that grows only the last blocks are made anew.
export class Markdown {
  constructor(into) {
    this.into = into;
    this.shown = [];
  }

  show(text) {
    const wanted = blocks(text);
    let same = 0;
    while (same < wanted.length && same < this.shown.length && wanted[same].source === this.shown[same].source &&
           wanted[same].kind === this.shown[same].kind) ++same;
    while (this.into.childNodes.length > same) this.into.lastChild.remove();
    for (const block of wanted.slice(same)) this.into.append(element(block));
    this.shown = wanted;
  }
}
