/* Controls and legend */
function choice(label, options, key, then) {
  const box = element("div", undefined, { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = element("button", text, { type: "button", "aria-pressed": String(state[key] === value) });
    button.addEventListener("click", () => {
      state[key] = value;
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
      then();
    });
    box.append(button);
  }
  return box;
}
function controls() {
  const place = $("controls");
  const names = [...new Set(data.runs.flatMap((run) => run.devices.map((d) => d.name)))];
  if (names.length > 1) {
    const select = element("select", undefined, { "aria-label": "device" });
    for (const name of names) {
      const option = element("option", name, { value: name });
      option.selected = name === state.device;
      select.append(option);
    }
    select.addEventListener("change", () => { state.device = select.value; state.path = ""; build(); });
    place.append(select);
  }
  place.append(
    choice("areas are", [["role", "by role"], ["module", "by module"], ["line", "by line"]], "by", () => { state.hidden.clear(); refresh(); }),
    choice("horizontal axis", [["time", "time"], ["order", "events"]], "axis", () => { charts.forEach((c) => c.reset()); refresh(); }),
  );
  const peak = element("button", "Go to the peak", { type: "button" });
  peak.addEventListener("click", () => charts.forEach((c) => c.toPeak()));
  const all = element("button", "Show all", { type: "button" });
  all.addEventListener("click", () => charts.forEach((c) => { c.leave(); c.reset(true); }));
  place.append(peak, all);
}
function legend() {
  const place = $("legend"), totals = new Map(), colors = new Map();
  place.replaceChildren();
  for (const [number, { tide }] of charts.entries()) {
    const groups = tide.groups(state.by), stacks = tide.stacks(state.by);
    for (const g of [...groups.stack].reverse()) {
      if (!stacks[g].some((n) => n)) continue;
      const name = groups.names[g];
      colors.set(name, groups.colors[g]);
      if (!totals.has(name)) totals.set(name, charts.map(() => 0));
      totals.get(name)[number] = stacks[g][tide.data.moment];
    }
  }
  for (const [name, held] of totals) {
    const button = element("button", undefined, { type: "button", "aria-pressed": "true", title: `${name}: at the peak ${held.map(bytes).join(" and ")}` });
    button.append(swatch(colors.get(name)), element("span", name, { class: "name" }), element("span", held.map(bytes).join(" | "), { class: "number" }));
    button.addEventListener("click", () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      button.setAttribute("aria-pressed", String(!state.hidden.has(name)));
      charts.forEach((c) => c.draw());
    });
    place.append(button);
  }
  const seen = new Set(charts.flatMap((c) => c.tide.run.phases.map((span) => span[2])));
  const phases = element("span", undefined, { class: "phases number" });
  data.phases.forEach(({ name, color }, k) => { if (seen.has(k)) phases.append(swatch(color), ` ${name} `); });
  if (charts.some((c) => c.tide.data.drops.length)) phases.append(swatch("var(--ink)"), " dropped for a byte budget ");
  place.append(phases);
}
function refresh() {
  legend();
  charts.forEach((c) => c.draw());
}
function build() {
  const place = $("timelines");
  place.replaceChildren();
  charts = [];
  for (const run of data.runs) {
    const index = run.devices.findIndex((d) => d.name === state.device);
    if (index >= 0) charts.push(new Chart(new Tide(run, index), place, run.name));
  }
  for (const id of ["timelines", "treemaps"]) $(id).classList.toggle("two", charts.length > 1);
  for (const section of document.querySelectorAll("section[data-device]")) section.hidden = section.dataset.device !== state.device;
  refresh();
  drawMaps();
}

/* Tables: the rows are in the page; here they learn to sort and to filter. */
function enliven(section) {
  const table = section.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const bar = section.querySelector(".bar"), tools = element("div", undefined, { class: "controls" });
  const field = element("input", undefined, { type: "search", placeholder: "filter", "aria-label": `filter ${section.querySelector("h2").textContent}` });
  const count = element("span", "", { class: "count", role: "status" });
  const sized = table.tHead.querySelector("[data-sum]");
  tools.append(count, field);
  bar.append(tools);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, sum = 0;
    rows.forEach((row, k) => {
      row.hidden = !words.every((word) => texts[k].includes(word));
      if (row.hidden) return;
      shown++;
      if (sized) sum += Number(row.cells[sized.cellIndex].dataset.value);
    });
    count.textContent = `${shown} of ${rows.length} rows` + (sized ? `, ${bytes(sum)}` : "");
  };
  field.addEventListener("input", filter);
  filter();
  for (const head of table.tHead.rows[0].cells) {
    const button = element("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("number");
      const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : number;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[head.cellIndex];
        return number ? Number(cell.dataset.value) : cell.textContent;
      };
      const compare = number ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      body.append(...[...rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
    });
  }
}

controls();
build();
document.querySelectorAll("section.table").forEach(enliven);
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawMaps, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.draw()));
document.documentElement.dataset.ready = "yes";
