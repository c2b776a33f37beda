"use strict";
/* What all parts of the page use: the data, what is chosen, words for figures, elements. */

const data = JSON.parse(document.getElementById("data").textContent);
document.documentElement.classList.remove("no-script");
const $ = (id) => document.getElementById(id);
const BINS = ["B", "KiB", "MiB", "GiB", "TiB"];
// Ties go to the even digit, as in the figures that Python wrote into the page.
const hundredths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2, roundingMode: "halfEven", useGrouping: false });

function bytes(n) {
  let size = Math.abs(n), unit = 0;
  while (size >= 1024 && unit < BINS.length - 1) { size /= 1024; unit++; }
  return (n < 0 ? "−" : "") + (unit ? hundredths.format(size) : size) + " " + BINS[unit];
}
const duration = (ns) => (ns >= 1e9 ? (ns / 1e9).toFixed(3) + " s" : (ns / 1e6).toFixed(2) + " ms");
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) : "0.0") + " %";
function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}
function swatch(color) {
  const made = element("span", "", { class: "swatch" });
  made.style.background = color;
  return made;
}

const state = { by: "role", axis: "time", device: data.device, hidden: new Set(), path: "" };
let charts = [];
