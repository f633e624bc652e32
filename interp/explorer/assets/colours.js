// Weights and scores as colours: rising in lightness alone, or from blue over grey to orange.
const RAMPS = {
  light: [[247, 251, 255], [210, 227, 243], [154, 200, 224], [82, 157, 204], [28, 108, 177], [8, 48, 107]],
  dark: [[24, 30, 38], [21, 55, 88], [28, 92, 145], [60, 138, 190], [135, 190, 222], [226, 242, 252]],
};
const SIGNED = {
  light: [[5, 80, 150], [103, 169, 207], [247, 247, 247], [241, 163, 64], [179, 88, 6]],
  dark: [[130, 195, 240], [40, 105, 160], [32, 36, 42], [160, 90, 30], [255, 170, 90]],
};
// Paul Tol's muted scheme (2021), made for every colour vision
const WORDS = ["#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499"];
const OTHER = "#8c8c8c";

const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");

function between(ramp, share) {
  const place = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  const part = place - low;
  return ramp[low].map((value, i) => Math.round(value + part * (ramp[low + 1][i] - value)));
}

// share: 0 to 1, or for signed ones -1 to 1
function colour(share, signed = false) {
  return signed ? between(SIGNED[theme()], (share + 1) / 2) : between(RAMPS[theme()], share);
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

// black or white, whichever reads better on it (relative luminance, WCAG 2)
function ink([red, green, blue]) {
  const linear = (value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const light = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  return light > 0.179 ? "#000000" : "#ffffff";
}

// a colour of style.css as numbers, for canvases
function cssColour(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
