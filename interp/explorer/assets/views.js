// Parts of patterns to draw: {title, first: [query, key], cell, height, width, values, signed}.
// values are weights, row by row; a cell stands for `cell` queries and as many keys.
const side = Math.ceil(N / PAGE.cell);

async function wholeView(index) {
  const { cells } = await load(index);
  return view(HEADS[index].name, [0, 0], PAGE.cell, [side, side], Float32Array.from(cells, unit), index);
}

const unit = (byte) => byte / 255;

function view(title, first, cell, [height, width], values, index, signed = false) {
  return { title, first, cell, height, width, values, signed, causal: HEADS[index].causal };
}

async function windowView(index, place) {
  const { windows } = await load(index);
  const { rows, keys } = HEADS[index].windows[place];
  const size = [rows[1] - rows[0], keys[1] - keys[0]];
  return view(`${HEADS[index].name}, exact`, [rows[0], keys[0]], 1, size, Float32Array.from(windows[place], unit), index);
}

async function meanView(indices, title) {
  const sum = new Float32Array(side * side);
  for (const index of indices) {
    const { cells } = await load(index);
    for (let i = 0; i < sum.length; i += 1) sum[i] += cells[i];
  }
  for (let i = 0; i < sum.length; i += 1) sum[i] /= 255 * indices.length;
  const blank = indices.every((index) => HEADS[index].causal);
  return { ...view(title, [0, 0], PAGE.cell, [side, side], sum, indices[0]), causal: blank };
}

function difference(one, other) {
  const values = one.values.map((value, i) => value - other.values[i]);
  return { ...one, title: `${one.title} minus ${other.title}`, values, signed: true };
}

// the views of the present state, in the order in which they are drawn
async function currentViews() {
  const { head, compare, mean } = state;
  if (mean === "all") return [await meanView(drawn, `mean of ${drawn.length} heads`)];
  if (mean === "layer") {
    const { layer } = HEADS[head];
    const own = drawn.filter((index) => HEADS[index].layer === layer);
    return [await meanView(own, `mean of ${own.length} heads of layer ${layer}`)];
  }
  if (state.view >= 0) return [await windowView(head, state.view)];
  const one = await wholeView(head);
  if (compare < 0) return [one];
  const other = await wholeView(compare);
  return [one, other, difference(one, other)];
}

// where a query and a key are in a view; undefined outside of it
function placeIn(shown, q, k) {
  const row = Math.floor((q - shown.first[0]) / shown.cell);
  const column = Math.floor((k - shown.first[1]) / shown.cell);
  const inside = q >= 0 && k >= 0 && row >= 0 && column >= 0 && row < shown.height && column < shown.width;
  return inside ? { row, column } : undefined;
}

// whether no query of the cell sees a key of it
function isBlank(shown, row, column) {
  const lastQuery = Math.min(shown.first[0] + (row + 1) * shown.cell, N) - 1;
  return shown.causal && shown.first[1] + column * shown.cell > lastQuery;
}

const valueAt = (shown, { row, column }) => shown.values[row * shown.width + column];

function describeCell(shown, q, k) {
  const place = placeIn(shown, q, k);
  if (!place) return `${shown.title}: not in this part`;
  if (isBlank(shown, place.row, place.column)) return `${shown.title}: masked`;
  const number = valueAt(shown, place);
  const sign = shown.signed && number > 0 ? "+" : "";
  return `${shown.title}: ${shown.cell > 1 ? "at most " : ""}${sign}${number.toFixed(3)}`;
}
