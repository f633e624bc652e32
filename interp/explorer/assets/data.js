// What the page holds. A head's numbers are inflated when it is first looked at.
const PAGE = JSON.parse(byId("data").textContent);
const N = PAGE.tokens.length;
const HEADS = PAGE.heads;
const STRONGEST = 4;
const NO_KEY = 0xffff;
const KEPT = 64; // heads whose numbers stay inflated

const headByName = new Map(HEADS.map((head, index) => [head.name.toLowerCase(), index]));
const drawn = HEADS.map((head, index) => index).filter((index) => "causal" in HEADS[index]);

async function inflate(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// numbers of two bytes, the low one first, whatever the machine does
function shorts(bytes) {
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

const loaded = new Map();

function load(index) {
  if (!loaded.has(index)) {
    if (loaded.size >= KEPT) loaded.delete(loaded.keys().next().value);
    loaded.set(index, read(index));
  }
  return loaded.get(index);
}

async function read(index) {
  const part = (place) => inflate(`b${index}-${place}`);
  const [cells, keys, weights] = await Promise.all([part(0), part(1), part(2)]);
  const windows = await Promise.all(HEADS[index].windows.map((_, place) => part(3 + place)));
  return { cells, keys: shorts(keys), weights: shorts(weights), windows };
}

// the strongest keys of a query, as {token, weight}
function looksAt(data, query) {
  const found = [];
  for (let place = 0; place < STRONGEST; place += 1) {
    const key = data.keys[query * STRONGEST + place];
    if (key !== NO_KEY) found.push({ token: key, weight: data.weights[query * STRONGEST + place] / 65535 });
  }
  return found;
}

// the queries among whose strongest keys a token is, strongest first
function lookedAtBy(data, token) {
  const found = [];
  for (let place = 0; place < data.keys.length; place += 1) {
    if (data.keys[place] === token) {
      found.push({ token: Math.floor(place / STRONGEST), weight: data.weights[place] / 65535 });
    }
  }
  return found.sort((one, other) => other.weight - one.weight || one.token - other.token);
}

const tokenText = (place) => `${place} “${PAGE.tokens[place]}”`;
