"use strict";
/* Calls `start` with the data of the page, which a page of many cases holds packed. */
function withData(start) {
  const source = document.getElementById("data");
  if (!source) { return; }
  if (source.type === "application/json") { start(JSON.parse(source.textContent)); return; }
  const bytes = Uint8Array.from(atob(source.textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(unpacked).text().then((text) => start(JSON.parse(text)));
}
withData(function (data) {
  const root = document.documentElement, find = (id) => document.getElementById(id);
  const title = document.title;
  const rows = Array.from(document.querySelectorAll("#case-list tbody tr"));
  const body = document.querySelector("#case-list tbody"), built = find("built");
  const shown = find("shown"), said = find("said"), search = find("search"), scenario = find("scenario");
  const verdicts = Array.from(document.querySelectorAll("button.verdict"));
  const order = rows.slice(), byId = new Map(), byAnchor = new Map();
  let borrowed = null, back = null, offset = 0;
  const text = (place) => data.texts[place];
  rows.forEach((row, place) => {
    const link = row.querySelector("a");
    byAnchor.set(link.hash.slice(1), { row, link, facts: data.cases[place] });
    byId.set(link.textContent, link.hash.slice(1));
    row.words = (row.textContent + " " + text(data.cases[place][5])).toLowerCase();
    row.place = place;
  });

  /* The list: what is shown, in which order. */
  function pressed() { return verdicts.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.value); }
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), wanted = pressed();
    let count = 0;
    rows.forEach((row) => {
      const fits = (!wanted.length || wanted.includes(row.className)) &&
        (!scenario.value || data.scenarios[data.cases[row.place][0]][0] === scenario.value) &&
        words.every((word) => row.words.includes(word));
      row.hidden = !fits;
      count += fits;
    });
    shown.textContent = count + " of " + rows.length;
  }
  function sort(head) {
    const up = head.getAttribute("aria-sort") !== "ascending", column = head.cellIndex;
    document.querySelectorAll("#case-list thead th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => column === 2 ? parseFloat(row.cells[2].textContent) : column ? row.querySelector("a").textContent : row.place;
    order.sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : a.place - b.place) * (up ? 1 : -1); });
    body.append(...order);
  }

  /* One case: its view in the markup, or one made here of what the data holds. Text is set, never parsed as markup. */
  function make(tag, content, css) {
    const element = document.createElement(tag);
    if (css) { element.className = css; }
    if (content) { element.textContent = content; }
    return element;
  }
  function quote(word) { return /^[\w@%+=:,.\/-]+$/.test(word) ? word : "'" + word.replace(/'/g, "'\"'\"'") + "'"; }
  function list(places) {
    const found = make("dl");
    for (let n = 0; n < places.length; n += 2) { found.append(make("dt", text(places[n])), make("dd", text(places[n + 1]))); }
    return found;
  }
  function details(words, places) {
    const found = make("details"), many = places.length / 2;
    found.append(make("summary", words.replace("#", many)), list(places));
    return many ? found : "";
  }
  function card(...children) { const found = make("div", "", "card"); found.append(...children); return found; }
  function build(anchor) {
    const { row, link, facts } = byAnchor.get(anchor), id = link.textContent, view = make("article", "", "view"), head = make("h2", "", "");
    view.setAttribute("aria-labelledby", "built-title");
    head.id = "built-title"; head.tabIndex = -1;
    head.append(make("span", row.className, "badge " + row.className), " ", ...Array.from(link.cloneNode(true).childNodes));
    view.append(find("way").content.cloneNode(true), head);
    const reason = row.querySelector("th p");
    if (reason) { view.append(make("p", reason.textContent, "lead")); }
    if (facts[4] && text(facts[4])) { view.append(make("p", text(facts[4]))); }
    const command = make("div", "", "command"), copy = make("button", "Copy", "plain copy");
    copy.type = "button";
    command.append(make("code", facts[3] < 0 ? text(-1 - facts[3]) : "mla-harness run " + quote(id) + text(facts[3])), copy);
    const shared = data.scenarios[facts[0]];
    view.append(command, make("div", "", "slot"), card(list(facts[1])),
      card(make("h3", "Parameters"), facts[2].length ? list(facts[2]) : "", details("# that all cases of " + shared[0] + " have alike", shared[1])));
    built.replaceChildren(view);
    return view;
  }

  /* Routes: #case-7 or #fault-2 opens a view, and so does # and the id of a case; anything else is the overview. */
  function give() {
    if (borrowed) { borrowed.mark.replaceWith(...borrowed.nodes); borrowed = null; }
  }
  function borrow(anchor, view) {
    const nodes = Array.from(document.querySelectorAll(".acc")).filter((node) => node.dataset.owner === anchor), slot = view.querySelector(".slot");
    if (!nodes.length || !slot) { return; }
    const mark = document.createElement("i");
    nodes[0].before(mark);
    slot.append(...nodes);
    borrowed = { mark, nodes };
  }
  function route(first) {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch (error) { /* not an address of ours */ }
    const anchor = byId.get(name) || name, ready = find(anchor), was = root.classList.contains("in-case");
    let view = ready && ready.classList.contains("view") ? ready : byAnchor.has(anchor) ? build(anchor) : null;
    document.querySelectorAll(".view.open").forEach((other) => other.classList.remove("open"));
    give();
    root.classList.toggle("in-case", Boolean(view));
    if (view) {
      if (!was && !first) { offset = back ? back.offset : 0; }
      view.classList.add("open");
      borrow(anchor, view);
      const head = view.querySelector("h2");
      document.title = head.textContent.trim() + " · " + title;
      window.scrollTo(0, 0);
      head.focus({ preventScroll: true });
    } else {
      document.title = title;
      if (was && back && (!name || name === "overview")) {
        window.scrollTo(0, offset);
        back.link.focus({ preventScroll: true });
      } else if (was && ready) { ready.scrollIntoView(); }
    }
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']"), copy = event.target.closest("button.copy");
    if (link && !root.classList.contains("in-case")) { back = { link, offset: window.scrollY }; }
    if (!copy) { return; }
    const code = copy.previousElementSibling;
    const done = () => { copy.textContent = "Copied"; said.textContent = "Command copied"; };
    const select = () => { getSelection().selectAllChildren(code); said.textContent = "Command selected: copy it with the keyboard"; };
    if (navigator.clipboard) { navigator.clipboard.writeText(code.textContent).then(done, select); } else { select(); }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName), plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "Escape" && root.classList.contains("in-case")) { location.hash = "overview"; }
    if (event.key === "/" && !typing && plain) {
      if (root.classList.contains("in-case")) { back = null; location.hash = "cases"; }
      event.preventDefault();
      setTimeout(() => search.focus());
    }
  });
  verdicts.forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  }));
  search.addEventListener("input", filter);
  scenario.addEventListener("change", filter);
  document.querySelectorAll("#case-list thead button").forEach((button) => button.addEventListener("click", () => sort(button.parentElement)));
  document.querySelectorAll("a.narrow").forEach((link) => link.addEventListener("click", () => {
    scenario.value = link.dataset.scenario || "";
    verdicts.forEach((button) => button.setAttribute("aria-pressed", String(button.value === link.dataset.verdict)));
    filter();
  }));
  window.addEventListener("hashchange", () => route(false));
  root.classList.add("js");
  filter();
  route(true);
});
