/* The tree of modules at the peak, as nested rectangles. */
function tree(tide) {
  const root = { name: "all", path: "", bytes: 0, roles: {}, children: new Map() };
  const peak = tide.data.peak, r = tide.run.owners;
  for (let k = 0; k < peak.owner.length; k++) {
    const path = r.modules[r.module[peak.owner[k]]], n = peak.size[k], role = peak.role[k];
    let node = root, walked = "";
    const parts = path.split(".");
    for (const part of [null, ...parts]) {
      if (part !== null) {
        walked = walked ? `${walked}.${part}` : part;
        if (!node.children.has(part)) node.children.set(part, { name: part, path: walked, bytes: 0, roles: {}, children: new Map() });
        node = node.children.get(part);
      }
      node.bytes += n;
      node.roles[role] = (node.roles[role] || 0) + n;
    }
    node.own = (node.own || 0) + n;
    node.ownRoles = node.ownRoles || {};
    node.ownRoles[role] = (node.ownRoles[role] || 0) + n;
  }
  return root;
}
function childrenOf(node) {
  const found = [...node.children.values()];
  if (node.own && found.length) found.push({ name: "itself", path: node.path, bytes: node.own, roles: node.ownRoles, children: new Map() });
  return found.sort((a, b) => b.bytes - a.bytes);
}
/* Squarified rows (Bruls, Huizing and van Wijk 2000): each row as near to squares as it gets. */
function squares(nodes, x, y, w, h) {
  const placed = [];
  let left = nodes.filter((n) => n.bytes > 0), total = left.reduce((s, n) => s + n.bytes, 0);
  while (left.length && w > 0 && h > 0) {
    const side = Math.min(w, h), scale = (w * h) / total;
    const worst = (row, sum) => Math.max(...row.map((n) => Math.max((side * side * n.bytes) / (sum * sum * scale), (sum * sum * scale) / (side * side * n.bytes))));
    let row = [left[0]], sum = left[0].bytes, k = 1;
    while (k < left.length && worst([...row, left[k]], sum + left[k].bytes) <= worst(row, sum)) { row.push(left[k]); sum += left[k++].bytes; }
    const thick = (sum * scale) / side;
    let at = 0;
    for (const n of row) {
      const long = (n.bytes / sum) * side;
      placed.push(w >= h ? [n, x, y + at, thick, long] : [n, x + at, y, long, thick]);
      at += long;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    total -= sum;
    left = left.slice(k);
  }
  return placed;
}
/* Largest first: the letters lie on it. */
function paint(roles, total) {
  const parts = [];
  let at = 0;
  for (const role of Object.keys(roles).sort((a, b) => roles[b] - roles[a])) {
    const to = at + (100 * roles[role]) / total;
    parts.push(`${data.roles[role].color} ${at}% ${to}%`);
    at = to;
  }
  return `linear-gradient(90deg, ${parts.join(", ")})`;
}
/* Whether dark letters are easier to read on a color. */
function isPale(color) {
  const part = (k) => parseInt(color.slice(k, k + 2), 16);
  return 0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5) > 140;
}
function drawMaps() {
  const places = $("treemaps");
  places.replaceChildren();
  for (const chart of charts) {
    const box = element("div", undefined, { class: "run" }), map = element("div", undefined, { class: "map" });
    if (data.runs.length > 1) box.append(element("h3", `${chart.tide.run.name}: ${bytes(chart.tide.data.peak.bytes)}`));
    box.append(map);
    places.append(box);
    let node = tree(chart.tide);
    const whole = node.bytes;
    for (const part of state.path ? state.path.split(".") : []) node = (node && node.children.get(part)) || null;
    if (!node) { map.append(element("p", "Nothing of this module at the peak.", { class: "hint" })); continue; }
    const leaf = (n, x, y, w, h) => tile(map, n, x, y, w, h, true, whole);
    const inside = (nodes, x, y, w, h, depth) => {
      for (const [n, a, b, c, d] of squares(nodes, x, y, w, h)) {
        const below = childrenOf(n);
        if (below.length && c > 54 && d > 46 && depth < 6) {
          tile(map, n, a, b, c, d, false, whole);
          inside(below, a + 3, b + 19, c - 6, d - 22, depth + 1);
        } else if (c > 2 && d > 2) leaf(n, a, b, c, d);
      }
    };
    const below = childrenOf(node);
    inside(below.length ? below : [node], 0, 0, map.clientWidth, map.clientHeight, 0);
  }
  const crumbs = $("crumbs");
  crumbs.replaceChildren();
  const parts = state.path ? state.path.split(".") : [];
  for (let k = 0; k <= parts.length; k++) {
    const button = element("button", k ? parts[k - 1] : "all modules", { type: "button" });
    if (k === parts.length) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => look(parts.slice(0, k).join(".")));
    crumbs.append(button);
  }
}
function tile(map, n, x, y, w, h, leaf, whole) {
  const title = `${n.path}: ${bytes(n.bytes)}, ${percent(n.bytes, whole)} of the peak`;
  const button = element("button", undefined, { type: "button", class: leaf ? "leaf" : "branch", title, "aria-label": title });
  Object.assign(button.style, { left: x + "px", top: y + "px", width: w + "px", height: h + "px" });
  if (leaf) {
    button.style.background = paint(n.roles, n.bytes);
    const most = Object.keys(n.roles).reduce((a, b) => (n.roles[b] > n.roles[a] ? b : a));
    button.classList.toggle("pale", isPale(data.roles[most].color));
  }
  if (!leaf || (w > 26 && h > 18)) button.append(element("span", n.name, { class: "name" }));
  if (!leaf || (h > 36 && w > 62)) button.append(element("span", bytes(n.bytes), { class: "number" }));
  button.addEventListener("click", () => look(n.path));
  map.append(button);
}
function look(path) {
  state.path = path;
  drawMaps();
  for (const field of document.querySelectorAll("[data-table=owners]:not([hidden]) input")) {
    field.value = path;
    field.dispatchEvent(new Event("input"));
  }
  const current = document.querySelector("#crumbs [aria-current]");
  if (current) current.focus({ preventScroll: true });
}
