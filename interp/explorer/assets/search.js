// Places of the text that hold what is searched for, whatever its case and wherever tokens end.
const PIECES = PAGE.tokens.some((text) => text.startsWith("##")); // WordPiece writes no blanks
const plain = (text) => text.toLowerCase().replaceAll(/[·⏎]/g, " ");
const LOWER = joinBytes(PAGE.tokens).map((text) =>
  PIECES ? (text.startsWith("##") ? plain(text.slice(2)) : ` ${plain(text)}`) : plain(text));

// bytes such as <0xC3> <0xA9> are characters only together: their first token gets the text
function joinBytes(tokens) {
  const bytesOf = (text) => [...text.matchAll(/<0x([0-9A-F]{2})>/g)].map((match) => parseInt(match[1], 16));
  const joined = [...tokens];
  for (let first = 0; first < N; first += 1) {
    let last = first;
    while (last < N && /<0x[0-9A-F]{2}>/.test(tokens[last])) last += 1;
    if (last === first) continue;
    const bytes = tokens.slice(first, last).flatMap((text) =>
      text.split(/(<0x[0-9A-F]{2}>)/).flatMap((part) => (/^<0x/.test(part) ? bytesOf(part) : [...new TextEncoder().encode(part)])));
    joined[first] = new TextDecoder().decode(Uint8Array.from(bytes));
    joined.fill("", first + 1, last);
    first = last;
  }
  return joined;
}
const STARTS = [];
LOWER.reduce((start, text, place) => {
  STARTS[place] = start;
  return start + text.length;
}, 0);
const WHOLE = LOWER.join("");
let matches = []; // the first token of each place

// the token that holds a character of the text
function tokenAt(character) {
  let [low, high] = [0, N];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (STARTS[middle] <= character) low = middle;
    else high = middle;
  }
  return low;
}

function findTokens() {
  for (const span of byId("strip").querySelectorAll(".match")) span.classList.remove("match");
  const wanted = plain(state.find);
  const found = new Set();
  for (let at = wanted ? WHOLE.indexOf(wanted) : -1; at >= 0; at = WHOLE.indexOf(wanted, at + wanted.length)) {
    const [first, last] = [tokenAt(at), tokenAt(at + wanted.length - 1)];
    found.add(first);
    for (let place = first; place <= last; place += 1) byId(`t${place}`).classList.add("match");
  }
  matches = [...found];
  byId("next").disabled = !matches.length;
  tellMatches();
}

function tellMatches() {
  const at = matches.indexOf(shownToken());
  const which = at >= 0 ? `${at + 1} of ` : "";
  byId("found").textContent = state.find ? `${which}${matches.length} found` : "";
}

function nextMatch() {
  if (!matches.length) return;
  const after = matches.find((place) => place > shownToken());
  lockToken(after ?? matches[0]);
  tellMatches();
}
