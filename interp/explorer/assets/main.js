// Put the page together and listen.
function fillControls() {
  byId("title").textContent = PAGE.title;
  fill(byId("facts"), PAGE.lines.map((text) => make("span", { text })));
  fill(byId("map"), PAGE.maps.map((map, place) => option(place, map.title)));
  fill(byId("names"), drawn.map((index) => option(HEADS[index].name, "")));
  byId("patterns").hidden = !drawn.length;
  document.querySelector("main").classList.toggle("bare", !drawn.length);
}

function showControls() {
  keep("head", HEADS[state.head]?.name ?? "");
  keep("compare", HEADS[state.compare]?.name ?? "");
  keep("find", state.find);
  byId("map").value = String(state.map);
  byId("mean").value = state.mean;
  byId("top").value = String(state.top);
  for (const radio of document.getElementsByName("direction")) radio.checked = radio.value === state.direction;
  byId("unlock").hidden = !state.lock;
  byId("view").value = String(state.view);
}

// what somebody is writing stays
function keep(id, value) {
  if (document.activeElement !== byId(id)) byId(id).value = value;
}

function showParts() {
  const windows = HEADS[state.head]?.windows ?? [];
  byId("view-label").hidden = !windows.length;
  fill(byId("view"), [option(-1, "overview"), ...windows.map(({ rows, keys }, place) =>
    option(place, `queries ${rows.join(":")}, keys ${keys.join(":")}`))]);
}

function showTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = state.theme || (dark ? "dark" : "light");
  byId("theme-button").textContent = theme() === "dark" ? "Light" : "Dark";
  colourHeads();
  showViews();
  showStrip();
}

const unlock = () => update({ lock: false, q: -1, k: -1 });

// of a cell the other token is looked at; of a token alone, the same one from the other side
function flip() {
  const cell = state.q >= 0 && state.k >= 0;
  const turned = cell ? {} : { q: state.k, k: state.q };
  update({ direction: state.direction === "out" ? "in" : "out", ...turned });
}

function toggleHelp() {
  byId("help").hidden = !byId("help").hidden;
  byId("help-button").setAttribute("aria-expanded", String(!byId("help").hidden));
}

function readHeadInput(input, name) {
  const text = input.value.trim();
  if (name === "compare" && !text) {
    say("");
    return update({ compare: -1 });
  }
  const index = aDrawnHead(text);
  if (index === undefined) {
    say(`“${text.slice(0, 40)}” is no head of this page; write ${HEADS[drawn[0]].name}, say.`);
    input.value = HEADS[state[name]]?.name ?? "";
    return undefined;
  }
  say("");
  return update(name === "head" ? { head: index, view: -1 } : { compare: index });
}

function listenToControls() {
  byId("head").addEventListener("change", (event) => readHeadInput(event.target, "head"));
  byId("compare").addEventListener("change", (event) => readHeadInput(event.target, "compare"));
  byId("map").addEventListener("change", (event) => update({ map: Number(event.target.value) }));
  byId("mean").addEventListener("change", (event) => update({ mean: event.target.value }));
  byId("view").addEventListener("change", (event) => update({ view: Number(event.target.value) }));
  byId("top").addEventListener("change", (event) => update({ top: Number(event.target.value) }));
  byId("find").addEventListener("input", (event) => update({ find: event.target.value.slice(0, 200) }));
  byId("find").addEventListener("keydown", (event) => event.key === "Enter" && nextMatch());
  byId("next").addEventListener("click", nextMatch);
  byId("unlock").addEventListener("click", unlock);
  byId("help-button").addEventListener("click", toggleHelp);
  byId("theme-button").addEventListener("click", () => update({ theme: theme() === "dark" ? "light" : "dark" }));
  for (const radio of document.getElementsByName("direction")) radio.addEventListener("change", flip);
  window.addEventListener("hashchange", followAddress);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  watchSize();
  document.addEventListener("keydown", pressed);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    document.activeElement?.blur?.();
    if (!byId("help").hidden) return toggleHelp();
    return unlock();
  }
  const writing = event.target.matches?.("input:not([type=radio]), select, textarea");
  if (writing || !byId("shortcuts").checked) return;
  const act = {
    "?": toggleHelp,
    "/": () => byId("find").focus(),
    c: () => byId("compare").focus(),
    d: flip,
    "[": () => stepHead(-1),
    "]": () => stepHead(1),
    Enter: () => !event.target.closest("button, summary, a") && (state.q >= 0 || state.k >= 0) && update({ lock: !state.lock }),
  }[event.key];
  if (!act) return;
  if (event.key !== "Enter") event.preventDefault();
  act();
}

function stepHead(step) {
  if (!drawn.length) return;
  const at = (drawn.indexOf(state.head) + step + drawn.length) % drawn.length;
  update({ head: drawn[at], view: -1 });
}

fillControls();
buildHeadMap();
buildStrip();
listenToHeadMap();
listenToStrip();
listenToControls();
watch(["head", "compare"], () => markHeads());
watch(["head"], showCard);
watch(["head"], showParts);
watch(["map"], colourHeads);
watch(["head", "compare", "mean", "view", "top"], showViews);
watch(["q", "k", "lock"], showReadout);
watch(["head", "mean", "top", "q", "k", "direction", "lock"], showStrip);
watch(["find"], findTokens);
watch(["q", "k"], tellMatches);
watch(Object.keys(START), showControls);
watch(["map", "mean", "view", "top", "find", "theme", "lock"], () => say(""));
watch(["theme"], showTheme);
markHeads();
showCard();
showParts();
showControls();
showTheme();
followAddress();
