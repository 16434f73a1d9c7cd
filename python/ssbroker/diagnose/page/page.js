"use strict";
const byId = (id) => document.getElementById(id);
const element = (name, options = {}, ...children) => {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
};
const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/* Findings: filter, and copy a remedy. */
const filter = byId("filter");
filter?.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase();
  for (const block of document.querySelectorAll("#findings .code")) {
    const isNamed = block.querySelector("summary").textContent.toLowerCase().includes(wanted);
    let shown = 0;
    for (const finding of block.querySelectorAll(".finding")) {
      finding.hidden = !(isNamed || finding.textContent.toLowerCase().includes(wanted));
      shown += !finding.hidden;
    }
    block.hidden = shown === 0;
  }
});

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page opened from a file may not have the clipboard
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  await copy(button.parentElement.querySelector("pre").textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

/* Reachability: one cell is focusable; the arrow keys move within the table. */
const matrix = document.querySelector(".matrix");
if (matrix) {
  const endings = JSON.parse(byId("endings").textContent);
  const describe = (cell) => {
    const column = matrix.rows[0].cells[cell.cellIndex].title;
    return `${cell.parentElement.cells[0].title} to ${column}: ${endings[cell.dataset.end]}`;
  };
  const show = (cell) => {
    matrix.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.tabIndex = 0;
    byId("cell").textContent = describe(cell);
  };
  matrix.addEventListener("mouseover", (event) => { if (event.target.tagName === "TD") event.target.title = describe(event.target); });
  const first = matrix.querySelector("td");
  if (first) first.tabIndex = 0;
  matrix.addEventListener("focusin", (event) => { if (event.target.tagName === "TD") show(event.target); });
  matrix.addEventListener("click", (event) => {
    const cell = event.target.closest("td");
    if (cell) { show(cell); cell.focus(); }
  });
  matrix.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!cell || !move) return;
    event.preventDefault();
    const next = matrix.rows[cell.parentElement.rowIndex + move[0]]?.cells[cell.cellIndex + move[1]];
    if (next?.tagName === "TD") { next.tabIndex = -1; next.focus(); }
  });
}

/* The graph: instances, databases, services and next hops in four layers. */
const NODES_MAX = 220;
const DENSE_EDGES = 150;
const ROWS_MAX = 300;
const OUTCOMES = ["LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"]; // the worst last
const data = JSON.parse(byId("data").textContent);
const decisions = data.decisions.map((values, number) => ({
  number, ...Object.fromEntries(data.fields.map((name, place) => [name, values[place]])),
}));
for (const each of decisions) {
  each.start = each.database ?? "from other instances";
  each.target = each.service ?? "any other service";
  if (each.broker_id) each.target += ` with broker id ${each.broker_id}`;
  each.place = each.outcome === "LOCAL" ? each.hop : each.hop_instance ?? each.hop ?? `${each.outcome.toLowerCase()}: ${each.reason}`;
  each.by = each.route === null ? "" : `route "${each.route}" of ${each.route_table}`;
  each.text = `${each.instance} ${each.start} ${each.target} ${each.route ?? ""} ${each.hop ?? ""} ${each.place} ${each.reason}`.toLowerCase();
}
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
const explanations = unpack(data.explanations);
const instanceNames = data.instances.map((each) => each.name);
const instances = new Map(data.instances.map((each) => [each.name, each]));
const search = byId("search");
const chosen = byId("instance");
const boxes = [...document.querySelectorAll("#outcomes input")];
const worst = (rows) => OUTCOMES[Math.max(...rows.map((each) => OUTCOMES.indexOf(each.outcome)))];
const short = (text, length = 34) => text.length <= length ? text : `…${text.slice(1 - length)}`;

function filtered() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const outcomes = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  return decisions.filter((each) => (chosen.value === "" || each.instance === instanceNames[chosen.value])
    && outcomes.has(each.outcome) && words.every((word) => each.text.includes(word)));
}

class Drawing {
  constructor() { this.nodes = new Map(); this.edges = new Map(); this.classes = "layered"; }
  node(layer, key, label, kind, row, more = {}) {
    const id = `${layer} ${key}`;
    if (!this.nodes.has(id)) this.nodes.set(id, { id, layer, label, kind, rows: [], ...more });
    if (row) this.nodes.get(id).rows.push(row);
    return id;
  }
  edge(source, target, key, label, row) {
    const id = `${source} > ${target} > ${key}`;
    if (!this.edges.has(id)) this.edges.set(id, { id, source, target, label, rows: [] });
    this.edges.get(id).rows.push(row);
  }
}

function hopNode(drawing, row) {
  if (row.outcome === "LOCAL") return drawing.node(3, `local ${row.instance} ${row.hop}`, `${row.hop} (${row.instance})`, "database", row);
  if (row.hop_instance !== null) return drawing.node(3, `instance ${row.hop_instance}`, row.hop_instance, "instance", row, { instance: row.hop_instance });
  if (row.hop !== null) return drawing.node(3, `address ${row.hop}`, row.hop.replace("TCP://", ""), "address", row);
  return drawing.node(3, `${row.outcome} ${row.reason}`, `${row.outcome.toLowerCase()}: ${row.reason}`, row.outcome.toLowerCase(), row);
}

/* Draws databases with their services; services for which a database makes the same decisions are one node. */
function inDetail(rows) {
  const drawing = new Drawing();
  const conversation = (row) => `${row.instance}\n${row.start}\n${row.target}`;
  const answers = new Map();
  for (const row of rows) {
    const answer = `${row.outcome} ${row.place} ${row.reason} ${row.by} ${row.step}`;
    answers.set(conversation(row), `${answers.get(conversation(row)) ?? ""}\n${answer}`);
  }
  for (const row of rows) {
    const instance = drawing.node(0, row.instance, row.instance, "instance", row, { instance: row.instance });
    const database = drawing.node(1, `${row.instance}/${row.start}`, row.start, "database", row);
    const service = drawing.node(2, `${row.instance}/${row.start}${answers.get(conversation(row))}`, row.target, "service", row);
    drawing.edge(instance, database, "", "", row);
    drawing.edge(database, service, "", "", row);
    const label = [row.route, row.step === null ? "" : `step ${row.step}`].filter(Boolean).join(", ");
    drawing.edge(service, hopNode(drawing, row), `${row.outcome} ${label}`, label, row);
  }
  for (const node of drawing.nodes.values()) {
    if (node.kind === "service") labelGroup(node);
  }
  return drawing;
}

function labelGroup(node) {
  const names = [...new Set(node.rows.map((row) => row.target))];
  if (names.length === 1) return;
  node.kind = "group";
  node.label = plural(names.length, "service");
  node.names = names;
}

const routesOf = (rows) => plural(new Set(rows.map((row) => `${row.instance}/${row.route_table}/${row.route}`)).size, "route");

/* Draws instances and where their routes lead: in layers, or if there are many arrows, as two columns. */
function overview(rows) {
  const drawing = new Drawing();
  const leads = rows.filter((row) => row.hop !== null && row.outcome !== "LOCAL" && row.hop_instance !== row.instance);
  const isDense = new Set(leads.map((row) => `${row.instance}\n${row.hop_instance ?? row.hop}`)).size > DENSE_EDGES;
  for (const row of rows) drawing.node(0, row.instance, row.instance, "instance", row, { instance: row.instance });
  for (const row of leads) {
    const target = row.hop_instance === null
      ? drawing.node(1, row.hop, row.hop.replace("TCP://", ""), "address", row)
      : drawing.node(isDense ? 1 : 0, row.hop_instance, row.hop_instance, "instance", isDense ? row : null, { instance: row.hop_instance });
    drawing.edge(`0 ${row.instance}`, target, "", "", row);
  }
  for (const edge of drawing.edges.values()) edge.label = routesOf(edge.rows);
  drawing.isDense = isDense;
  drawing.classes = isDense ? "layered dense" : "";
  return drawing;
}

/* Draws the numbers of services by outcome, for each instance or all together. */
function byOutcome(rows) {
  const drawing = new Drawing();
  const names = new Set(rows.map((each) => each.instance));
  for (const row of rows) {
    const start = names.size > NODES_MAX / 2 ? drawing.node(0, "all", plural(names.size, "instance"), "group", row)
      : drawing.node(0, row.instance, row.instance, "instance", row, { instance: row.instance });
    const outcome = drawing.node(1, row.outcome, row.outcome, row.outcome.toLowerCase(), row);
    drawing.edge(start, outcome, "", "", row);
  }
  for (const edge of drawing.edges.values()) {
    edge.label = plural(new Set(edge.rows.map((row) => `${row.instance}/${row.target}`)).size, "service");
  }
  return drawing;
}

function drawingOf(rows) {
  const whole = inDetail(rows);
  if (whole.nodes.size <= NODES_MAX) return [whole, ""];
  const isFleet = new Set(rows.map((row) => row.instance)).size > 1;
  const drawing = isFleet ? overview(rows) : null;
  if (drawing && drawing.nodes.size <= NODES_MAX) return [drawing, "The graph is too large to draw whole, so it shows only instances and addresses. Choose an instance, search or filter to see databases, services and routes."];
  return [byOutcome(rows), "The graph is too large to draw whole, so it shows only how many services have each outcome. Search or filter to see databases, services and routes."];
}

const ROW_HEIGHT = 38;
function positions(drawing) {
  if (drawing.isDense) {
    const rows = [0, 0];
    const ordered = [...drawing.nodes.values()].sort((one, other) => one.label.localeCompare(other.label, "en", { numeric: true }));
    return Object.fromEntries(ordered.map((node) => [node.id, { x: node.layer * 460, y: ROW_HEIGHT * rows[node.layer]++ }]));
  }
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 12, ranksep: 40, edgesep: 8, ranker: "longest-path" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of drawing.nodes.values()) graph.setNode(node.id, { width: node.width, height: 30 });
  for (const edge of drawing.edges.values()) {
    graph.setEdge(edge.source, edge.target, edge.label ? { width: Math.min(170, edge.label.length * 5.2 + 10), height: 14, labelpos: "c" } : {}, edge.id);
  }
  dagre.layout(graph);
  return Object.fromEntries([...drawing.nodes.keys()].map((id) => [id, { x: graph.node(id).x, y: graph.node(id).y }]));
}

let cy = null;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
function styleSheet() {
  const fills = Object.fromEntries(["local", "remote", "forward", "delayed", "dropped", "error", "warning", "info", "fine"].map((name) => [name, colour(name)]));
  return [
    { selector: "node", style: {
      "background-color": colour("card"), "border-color": colour("dim"), "border-width": 1.5, color: colour("text"), "font-size": 12, height: 28, label: "data(label)",
      shape: "round-rectangle", "text-halign": "center", "text-valign": "center", width: "data(width)" } },
    { selector: "node[kind = 'address']", style: { "border-style": "dashed" } },
    { selector: "node[kind = 'instance']", style: { "font-weight": "bold", "border-width": 2.5 } },
    { selector: "node[kind = 'group']", style: { "border-style": "double", "border-width": 4 } },
    ...["error", "warning", "info", "fine"].map((name) => ({ selector: `node[severity = '${name}']`, style: { "border-color": fills[name] } })),
    ...["delayed", "dropped"].map((name) => ({ selector: `node[kind = '${name}']`, style: { "border-color": fills[name], color: fills[name] } })),
    { selector: "edge", style: {
      color: colour("text"), "curve-style": "bezier", "control-point-step-size": 26, "font-size": 10, label: "data(middle)", "line-color": colour("dim"), "min-zoomed-font-size": 5,
      "target-arrow-color": colour("dim"), "target-arrow-shape": "triangle", "text-background-color": colour("back"), "text-background-opacity": .9,
      "text-background-padding": 2, "text-max-width": 170, "text-wrap": "ellipsis", width: 1.6, "arrow-scale": .8 } },
    ...OUTCOMES.map((name) => ({ selector: `edge[outcome = '${name}']`, style: { "line-color": fills[name.toLowerCase()], "target-arrow-color": fills[name.toLowerCase()] } })),
    { selector: "edge.layered", style: { "source-endpoint": "50% 0", "target-endpoint": "-50% 0" } },
    { selector: "edge[offset]", style: {
      "curve-style": "segments", "edge-distances": "endpoints", "segment-distances": "data(distance)", "segment-weights": "data(weight)",
      "source-label": "data(near)", "source-text-offset": "data(offset)" } },
    { selector: "edge.dense", style: { label: "", opacity: .3, width: 1 } },
    { selector: "edge.dense.lit", style: { label: "data(label)", opacity: 1, width: 1.6 } },
    { selector: ".faded, edge.dense.faded", style: { opacity: .15 } },
    { selector: ".selected", style: { "border-color": colour("accent"), "border-width": 4, width: 3.5, "z-index": 9 } },
    { selector: "node.selected", style: { width: "data(width)" } },
  ];
}

const labelWidth = (label) => Math.min(170, label.length * 5.4) + 16;

/* The only arrow from a node leaves it horizontally below its label, where no other crosses it; several have theirs in the middle. */
function placeLabels(drawing, places) {
  const counts = new Map();
  for (const edge of drawing.edges.values()) counts.set(edge.source, (counts.get(edge.source) ?? 0) + 1);
  for (const edge of drawing.edges.values()) {
    const isNear = edge.label !== "" && counts.get(edge.source) === 1 && drawing.classes === "layered";
    edge.near = isNear ? edge.label : "";
    edge.middle = isNear ? "" : edge.label;
    if (!isNear) continue;
    edge.offset = labelWidth(edge.label) / 2;
    const [source, target] = [drawing.nodes.get(edge.source), drawing.nodes.get(edge.target)];
    const x = places[target.id].x - target.width / 2 - places[source.id].x - source.width / 2;
    const y = places[target.id].y - places[source.id].y;
    const length = Math.hypot(x, y);
    const stub = Math.min(labelWidth(edge.label), x);
    // The bend, relative to the line from end to end.
    edge.weight = stub * x / length / length;
    edge.distance = -stub * y / length;
  }
}

function draw() {
  const rows = filtered();
  const [drawing, note] = drawingOf(rows);
  for (const node of drawing.nodes.values()) {
    node.severity = node.kind === "instance" ? instances.get(node.instance)?.severity : undefined;
    node.fullLabel = node.label;
    node.label = short(node.label);
    node.width = Math.max(70, node.label.length * 6.9 + 22);
  }
  const places = positions(drawing);
  placeLabels(drawing, places);
  cy?.destroy();
  resize(drawing, places);
  cy = cytoscape({
    container: byId("graph"),
    elements: [
      ...[...drawing.nodes.values()].map((node) => ({ group: "nodes", data: node, position: places[node.id] })),
      ...[...drawing.edges.values()].map((edge) => ({ group: "edges", data: { ...edge, outcome: worst(edge.rows) }, classes: drawing.classes })),
    ],
    style: styleSheet(), layout: { name: "preset" }, minZoom: .05, maxZoom: 3, autoungrabify: true, boxSelectionEnabled: false, userZoomingEnabled: false,
  });
  cy.on("tap", "node, edge", (event) => select(event.target));
  cy.on("tap", (event) => {
    byId("graph").focus({ preventScroll: true }); // Cytoscape takes the focus away
    if (event.target === cy) select(null);
  });
  cy.on("dbltap", "node[kind = 'instance']", (event) => choose(event.target.data("instance")));
  fit();
  byId("note").textContent = [note, data.omitted ? `${plural(data.omitted, "decision")} more are not in this page.` : ""].filter(Boolean).join(" ");
  byId("shown").textContent = `${plural(rows.length, "decision")} of ${decisions.length.toLocaleString("en")}`;
  table(rows);
  select(null);
}

/* The least zoom at which text can be read; with it, the layers fit side by side where the window is wide enough. */
const leastZoom = (width) => Math.min(.8, Math.max(innerWidth < 600 ? .6 : .62, (byId("graph").clientWidth - 32) / width));

/* Makes the graph as high as its content at a readable size, within limits. */
function resize(drawing, places) {
  const nodes = [...drawing.nodes.values()];
  const extent = (axis, half) => (nodes.length ? Math.max(...nodes.map((node) => places[node.id][axis] + half(node))) - Math.min(...nodes.map((node) => places[node.id][axis] - half(node))) : 1);
  least = leastZoom(extent("x", (node) => node.width / 2));
  const wanted = extent("y", () => 16) * least + 40;
  byId("graph").style.height = `${Math.round(Math.min(Math.max(320, wanted), Math.max(480, innerHeight * (innerWidth < 600 ? .75 : 1.6))))}px`;
}
let least = 1;

/* Shows the whole graph, or if it would be too small to read, its upper left corner. */
function fit() {
  cy.resize();
  cy.fit(undefined, 16);
  if (cy.zoom() > 1.1) cy.zoom(1.1);
  cy.center();
  if (cy.zoom() >= least) return;
  cy.zoom(least);
  const box = cy.elements().boundingBox({ includeLabels: false });
  const start = (size, length, first) => (length * least < size ? (size - length * least) / 2 : 16) - first * least;
  cy.pan({ x: start(cy.width(), box.w, box.x1), y: start(cy.height(), box.h, box.y1) });
}

let selected = null;
function select(target) {
  selected = target;
  cy.elements().removeClass("faded selected lit");
  const details = byId("details");
  details.replaceChildren();
  if (!target) {
    details.append(element("h3", { textContent: "Details" }), element("p", { className: "dim", textContent: "Choose a node or an arrow to see its decisions and why they are made. In the graph, the arrow keys move between nodes, Enter opens an instance, plus and minus zoom, 0 shows all, and Escape goes back." }));
    return;
  }
  const rows = new Set(target.data("rows").map((row) => row.number));
  const touches = (each) => each.data("rows").some((row) => rows.has(row.number));
  cy.elements().filter((each) => !touches(each)).addClass("faded");
  cy.elements().not(".faded").addClass("lit");
  target.removeClass("faded").addClass("selected lit");
  details.append(element("h3", { textContent: target.isNode() ? target.data("fullLabel") : target.data("label") || "Decisions" }));
  const instance = target.data("instance") !== undefined && instances.get(target.data("instance"));
  if (instance) {
    details.append(element("p", { textContent: `${plural(instance.databases, "database")}, ${plural(instance.routes, "route")}${instance.addresses.length ? `, ${instance.addresses.join(", ")}` : ""}` }));
    if (chosen.value === "" || instanceNames[chosen.value] !== instance.name) {
      const button = element("button", { type: "button", textContent: `Show only ${short(instance.name)}` });
      button.addEventListener("click", () => choose(instance.name));
      details.append(button);
    }
  }
  if (target.data("names")) details.append(element("p", { textContent: target.data("names").join(", ") }));
  const list = element("ul");
  for (const row of target.data("rows").slice(0, 50)) list.append(element("li", {}, decisionView(row)));
  details.append(list);
  if (target.data("rows").length > 50) details.append(element("p", { className: "dim", textContent: `and ${target.data("rows").length - 50} more` }));
}

function decisionText(row) {
  const where = row.hop === null ? ` (${row.reason})` : row.outcome === "LOCAL" ? ` in ${row.hop}` : ` to ${row.hop}${row.hop_instance === null ? "" : `, ${row.hop_instance}`}`;
  return `${row.outcome}${where}${row.by ? `, by ${row.by}` : ""}${row.step === null ? "" : `, step ${row.step}`}`;
}
function decisionView(row) {
  const head = [element("span", { textContent: `${row.instance}/${row.start} to ${row.target}: ` }), element("b", { className: row.outcome.toLowerCase(), textContent: decisionText(row) })];
  if (row.explanation === null) return element("div", {}, ...head);
  const steps = element("pre", { className: "steps" });
  explanations.then((texts) => { steps.textContent = texts[row.explanation]; });
  return element("details", {}, element("summary", {}, ...head), steps);
}

function choose(name) {
  chosen.value = String(instanceNames.indexOf(name));
  draw();
}

function table(rows) {
  const body = byId("decisions").querySelector("tbody");
  body.replaceChildren(...rows.slice(0, ROWS_MAX).map((row) => element("tr", {},
    ...[row.instance, row.start, row.target].map((text) => element("td", { textContent: text })),
    element("td", { className: row.outcome.toLowerCase(), textContent: row.outcome }),
    ...[row.hop ?? row.reason, row.by, row.step ?? ""].map((text) => element("td", { textContent: text })))));
  byId("rest").textContent = rows.length > ROWS_MAX ? `and ${(rows.length - ROWS_MAX).toLocaleString("en")} more` : "";
}

function step(key) {
  const nodes = cy.nodes();
  if (!nodes.length) return;
  const from = selected?.isNode?.() ? selected : null;
  let next = null;
  if (!from) next = nodes.min((node) => node.position("x") * 1e4 + node.position("y")).ele;
  else if (key === "ArrowRight") next = from.outgoers("node")[0];
  else if (key === "ArrowLeft") next = from.incomers("node")[0];
  else {
    const down = key === "ArrowDown";
    const layer = nodes.filter((node) => node.data("layer") === from.data("layer") && (down ? node.position("y") > from.position("y") : node.position("y") < from.position("y")));
    if (layer.length) next = (down ? layer.min((node) => node.position("y")) : layer.max((node) => node.position("y"))).ele;
  }
  if (!next) return;
  select(next);
  const box = next.renderedBoundingBox();
  if (box.x1 < 0 || box.y1 < 0 || box.x2 > cy.width() || box.y2 > cy.height()) cy.center(next);
}
const zoom = (factor) => cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });

byId("graph").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key.startsWith("Arrow")) step(event.key);
  else if (event.key === "Enter" && selected?.data("instance") !== undefined) choose(selected.data("instance"));
  else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(.8);
  else if (event.key === "0") fit();
  else if (event.key === "Escape" && selected) select(null);
  else if (event.key === "Escape" && chosen.value !== "") { chosen.value = ""; draw(); }
  else return;
  event.preventDefault();
});
/* The wheel scrolls the page until the graph is used. */
byId("graph").addEventListener("focusin", () => cy.userZoomingEnabled(true));
byId("graph").addEventListener("focusout", () => cy.userZoomingEnabled(false));
let waiting = 0;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
chosen.addEventListener("change", draw);
for (const box of boxes) box.addEventListener("change", draw);
byId("larger").addEventListener("click", () => zoom(1.25));
byId("smaller").addEventListener("click", () => zoom(.8));
byId("whole").addEventListener("click", fit);
byId("reset").addEventListener("click", () => { search.value = ""; chosen.value = ""; for (const box of boxes) box.checked = true; draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cy.style(styleSheet()));
addEventListener("resize", () => { cy.resize(); });
draw();
