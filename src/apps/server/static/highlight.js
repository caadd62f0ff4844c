// SPDX-License-Identifier: Apache-2.0
// Colours code a little: comments, strings, numbers and the words that most languages have. Guesses, and loses nothing:
// the spans together are the text.
import { h } from "./dom.js";

const HASH = new Set(["py", "python", "sh", "bash", "shell", "zsh", "fish", "ruby", "rb", "yaml", "yml", "toml", "r", "perl", "make",
                      "makefile", "dockerfile", "cmake", "conf", "ini"]);
const DASHES = new Set(["sql", "lua", "haskell", "hs", "ada", "elm"]);
const PLAIN = new Set(["", "text", "txt", "plain", "output", "log"]);
const WORDS = new Set(
  ("abstract and as assert async await auto begin bool boolean break case catch char class const constexpr continue def default " +
   "defer del delete do double elif else end enum except export extends extern false final finally float fn for foreach from func " +
   "function global go if impl implements import in include instanceof int interface is lambda let local long loop match mod " +
   "module mut namespace new nil None not null nullptr of or package pass private protected public pub raise return select self " +
   "short signed sizeof static std string struct super switch template then this throw throws trait true True False try type " +
   "typedef typename typeof undefined union unless unsigned until use using var virtual void where while with yield " +
   "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET CREATE TABLE JOIN ON GROUP BY ORDER LIMIT AND OR NOT NULL AS").split(" "));

export function highlight(code, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return [code];
  const comment = HASH.has(name) ? "#[^\\n]*" : DASHES.has(name) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)|<!--[\\s\\S]*?(?:-->|$)";
  const token = new RegExp(
    `(${comment})|("(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|\`(?:\\\\.|[^\`\\\\])*\`?)` +
    "|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)", "g");
  const parts = [];
  let at = 0;
  for (const found of code.matchAll(token)) {
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "number" : WORDS.has(found[4]) ? "word" : "";
    if (!kind) continue;
    if (found.index > at) parts.push(code.slice(at, found.index));
    parts.push(h("span", { class: `code-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  parts.push(code.slice(at));
  return parts;
}
