
/* The questions of a measurement: a list that is narrowed and searched, and one question with its
   answers by epoch. Text is set, never parsed as markup. */
withData(function (packed) {
  "use strict";
  const WORDS = packed.outcomes, COLUMNS = packed.grid_columns, MOST = 500;
  const SIGNS = { "1": "+", "0": "x", p: "?", e: "?", i: "?", u: "?", ".": "." };
  const KINDS = {
    "not the same every time": (one) => new Set(one.marks).size > 1 || one.isChanged,
    "wrong in some epoch": (one) => one.marks.includes("0"),
    "not usable in some epoch": (one) => /[peiu]/.test(one.marks),
    "right, with another text": (one) => one.isChanged && /^1+$/.test(one.marks),
    "all questions": () => true,
  };
  const data = packed.measured || [];

  function make(tag, words, css) {
    const element = document.createElement(tag);
    if (css) { element.className = css; }
    if (words) { element.textContent = words; }
    return element;
  }
  function questionsOf(found) {
    const count = found.rows.length ? found.rows[0].length : 0, questions = [];
    for (let place = 0; place < count; place += 1) {
      const marks = (found.baseline ? found.baseline[place] : "") + found.rows.map((row) => row[place]).join("");
      const asked = (found.asked || {})[place + 1];
      const isChanged = (found.changed || []).some((row) => row[place] === "1");
      questions.push({ number: place + 1, marks, asked, isChanged, words: asked ? asked.text : "" });
    }
    return questions;
  }

  /* One question: its words, and a block for each epoch with what was answered there. */
  function answerText(words, at) {
    const found = make("pre");
    if (at === null || at >= words.length) { found.textContent = words || "(empty)"; return found; }
    const end = at + 1 + (words.slice(at + 1).match(/^\w*/) || [""])[0].length;
    found.append(words.slice(0, at), make("mark", words.slice(at, end)), words.slice(end));
    return found;
  }
  function probabilities(row) {
    const said = [];
    const parting = row.parting;
    if (parting && parting.token) {
      const number = (value) => value === null ? "no number" : value.toFixed(3);
      said.push("parts from epoch 1 at token " + parting.token + ": " + JSON.stringify(parting.before) + " (log probability " + number(parting.logprob_before) +
        ") became " + JSON.stringify(parting.after) + " (" + number(parting.logprob_after) + ")");
    } else if (parting) {
      said.push(parting.character === null ? "parts from epoch 1 behind what is kept" : "parts from epoch 1 at character " + (parting.character + 1));
    }
    if (row.least_logprob !== null) { said.push("log probability: least " + row.least_logprob.toFixed(3) + ", mean " + row.mean_logprob.toFixed(3)); }
    return said;
  }
  function show(into, found, question) {
    const view = make("div", "", "asked"), asked = question.asked, offset = found.baseline ? 1 : 0;
    const head = make("h4", "Question " + question.number);
    head.tabIndex = -1;
    view.append(head);
    if (found.baseline) { view.append(make("p", "baseline: " + WORDS[question.marks[0]])); }
    if (!asked) {
      found.rows.forEach((row, place) => view.append(make("p", "epoch " + (place + 1) + ": " + WORDS[question.marks[offset + place]])));
      view.append(make("p", found.asked ? "Its answers are in accuracy.jsonl: this page is kept small." : "The answers of this case were not kept; mla-harness epochs keeps them.", "quiet small"));
    } else {
      if (asked.text) { view.append(make("pre", asked.text)); }
      if (asked.target) { view.append(make("p", "right answer: " + asked.target)); }
      asked.epochs.forEach((row) => {
        const block = make("div", "", "epoch"), mark = question.marks[offset + row.epoch - 1];
        const facts = ["epoch " + row.epoch + ": " + WORDS[mark], row.tokens ? row.tokens + " tokens" : "", row.finish ? "finish " + row.finish : "", "place " + row.place + " in its epoch", row.unanswered || ""];
        block.append(make("p", facts.filter(Boolean).join(" · ")));
        probabilities(row).forEach((words) => block.append(make("p", words, "quiet")));
        if (!row.unanswered) { block.append(answerText(asked.answers[row.answer], row.parting ? row.parting.character : null)); }
        view.append(block);
      });
    }
    into.replaceChildren(view);
    head.focus({ preventScroll: true });
    view.scrollIntoView({ block: "nearest" });
  }

  function explore(cardOf, found) {
    const place = cardOf.querySelector(".explore"), questions = questionsOf(found);
    if (!place || !questions.length) { return; }
    const tools = make("div", "", "tools"), kind = make("select"), search = make("input"), count = make("span", "", "quiet");
    const list = make("ol"), detail = make("div");
    kind.setAttribute("aria-label", "Which questions");
    list.tabIndex = 0;
    list.setAttribute("aria-label", "Questions");
    search.type = "search";
    search.placeholder = "Number or words of a question";
    search.setAttribute("aria-label", "Search questions");
    count.setAttribute("role", "status");
    Object.keys(KINDS).forEach((name) => {
      const option = make("option", name + " (" + questions.filter(KINDS[name]).length + ")");
      option.value = name;
      kind.append(option);
    });
    tools.append(kind, search, count);
    function open(question) {
      list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
      const own = list.querySelector("[value='" + question.number + "']");
      if (own) { own.setAttribute("aria-current", "true"); }
      show(detail, found, question);
    }
    function fill() {
      const words = search.value.trim().toLowerCase();
      /* Digits alone are the number of a question: most questions of arithmetic hold any digit. */
      const fits = (one) => !words || (/^\d+$/.test(words) ? String(one.number) === words : one.words.toLowerCase().includes(words));
      const chosen = questions.filter((one) => KINDS[kind.value](one) && fits(one));
      list.replaceChildren(...chosen.slice(0, MOST).map((one) => {
        const item = make("li"), button = make("button");
        button.type = "button";
        button.value = one.number;
        button.setAttribute("aria-label", "Question " + one.number + ": " + Array.from(one.marks, (mark) => WORDS[mark]).join(", "));
        button.append(make("b", String(one.number)), make("span", Array.from(one.marks, (mark) => SIGNS[mark]).join(""), "marks"), make("span", one.words.split("\n")[0], "words"));
        button.addEventListener("click", () => open(one));
        item.append(button);
        return item;
      }));
      list.hidden = !chosen.length;
      count.textContent = chosen.length > MOST ? MOST + " of " + chosen.length + " shown" : chosen.length + " of " + questions.length;
    }
    kind.addEventListener("change", fill);
    search.addEventListener("input", fill);
    place.append(tools, list, detail);
    fill();
    const drawn = cardOf.querySelector(".grid");
    if (drawn) {
      drawn.addEventListener("click", (event) => {
        const box = drawn.getBoundingClientRect(), view = drawn.viewBox.baseVal, scale = Math.min(box.width / view.width, box.height / view.height);
        const left = box.left + (box.width - view.width * scale) / 2, top = box.top + (box.height - view.height * scale) / 2;
        const columns = Math.min(COLUMNS, questions.length), bands = Math.ceil(questions.length / COLUMNS);
        const column = Math.floor((event.clientX - left) / scale / packed.grid_cell);
        const band = Math.floor((event.clientY - top) / scale / (view.height + packed.grid_gap) * bands);
        const one = questions[band * COLUMNS + column];
        if (column >= 0 && column < columns && one) { open(one); }
      });
    }
  }
  document.querySelectorAll("[data-measured]").forEach((cardOf) => explore(cardOf, data[Number(cardOf.dataset.measured)] || { rows: [] }));
});
