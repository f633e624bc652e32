// What is known of the chosen head.
function showCard() {
  const head = HEADS[state.head];
  if (!head) return;
  const parts = [make("h2", { text: head.name })];
  const labels = head.labels ?? [];
  if (labels.length) parts.push(make("ul", { "aria-label": "Labels" }, labels.map((text) => make("li", { text }))));
  if (head.text) parts.push(make("p", { text: head.text }));
  else parts.push(make("p", { className: "quiet", text: "Nothing is said of it: the page was made without an atlas." }));
  if (head.rows?.length) parts.push(cardTable(head.rows));
  fill(byId("card"), parts);
}

function cardTable(rows) {
  const line = (tag, cells) => make("tr", {}, cells.map((text) => make(tag, { text })));
  const table = make("table", {}, [
    make("thead", {}, [line("th", PAGE.columns)]),
    make("tbody", {}, rows.map((cells) => line("td", cells))),
  ]);
  return make("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers" }, [table]);
}
