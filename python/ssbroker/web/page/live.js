"use strict";
/* Shows the stream of states and events of `ssbroker serve --http`. All text becomes text nodes, never HTML. */
const byId = (id) => document.getElementById(id);
const element = (name, options = {}, ...children) => {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
};
const number = (value) => value.toLocaleString("en");
const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const nothing = (text) => element("p", { className: "dim", textContent: text });

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [size, unit] = units[first];
  const rest = first + 1 < units.length ? Math.floor((seconds % size) / units[first + 1][0]) : 0;
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${units[first + 1][1]}` : ""}`;
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index + 1 < units.length) { value /= 1024; index += 1; }
  return `${value.toLocaleString("en", { maximumFractionDigits: index ? 1 : 0 })} ${units[index]}`;
}

/* Characters that are invisible or change the direction of text are shown as escapes. */
const HIDDEN_CHARACTERS = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const safe = (text) => text.replace(HIDDEN_CHARACTERS, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
function setText(node, text) {
  const shown = safe(text);
  if (node.textContent !== shown) node.textContent = shown;
}

/* A table whose rows stay the same elements, so that focus and selection survive. On a phone each row is a record. */
class Table {
  constructor(place, columns, empty) {
    this.place = place;
    this.columns = columns;
    this.empty = nothing(empty);
    this.head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col", className: column.className ?? "", textContent: column.name })));
    this.body = element("tbody", {}, this.head);
    this.table = element("table", { className: "records" }, this.body);
    this.omitted = nothing("");
    this.rows = new Map();
    place.replaceChildren(nothing("Loading…"));
  }

  show(entries, omitted = 0) {
    const focused = document.activeElement;
    const keys = new Set(entries.map((entry) => entry.key));
    for (const [key, row] of this.rows) if (!keys.has(key)) { row.tr.remove(); row.below?.remove(); this.rows.delete(key); }
    let before = this.head;
    for (const entry of entries) {
      let row = this.rows.get(entry.key);
      if (!row) { row = this.make(entry); this.rows.set(entry.key, row); }
      row.entry = entry;
      row.tr.className = entry.className ?? "";
      this.columns.forEach((column, place) => {
        const cell = row.tr.cells[place];
        if (column.update) column.update(cell, entry, row);
        else setText(cell, String(column.value(entry)));
      });
      if (before.nextSibling !== row.tr) before.after(row.tr);
      before = row.tr;
      if (row.below) {
        if (before.nextSibling !== row.below) before.after(row.below);
        before = row.below;
      }
    }
    setText(this.omitted, `${plural(omitted, "more row")} not shown; ssbroker status shows all.`);
    this.omitted.hidden = omitted === 0;
    const wanted = [entries.length ? this.table : this.empty, this.omitted];
    if (this.place.firstChild !== wanted[0]) this.place.replaceChildren(...wanted);
    if (focused !== document.activeElement && this.table.contains(focused)) focused.focus({ preventScroll: true }); // its row has moved
  }

  make(entry) {
    const row = { tr: element("tr"), entry };
    for (const column of this.columns) {
      const cell = element("td", { className: column.className ?? "" });
      cell.dataset.name = column.name;
      column.build?.(cell, row);
      row.tr.append(cell);
    }
    return row;
  }
}

/* Charts over time. A point is [seconds since 1970, number of ready messages, age of the oldest]; null in a gap. */
const POINTS_MAX = 600;
const depths = new Map();
const keyOf = (row) => JSON.stringify([row.database, row.queue]);

const SVG = "http://www.w3.org/2000/svg";
function chart(kind) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `chart ${kind}`);
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const name of ["area", "line"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  return svg;
}

function draw(svg, points, place, describe) {
  const known = points.filter((point) => point[place] !== null);
  const greatest = Math.max(1, ...known.map((point) => point[place]));
  const last = points.length ? points[points.length - 1][0] : 0;
  const first = Math.min(points.length ? points[0][0] : 0, last - 60);
  const at = (point) => [(100 * (point[0] - first)) / (last - first), 29 - (27 * point[place]) / greatest];
  const runs = [[]];
  for (const point of points) {
    if (point[place] === null && point[1] === null) runs.push([]);
    else runs[runs.length - 1].push(point[place] === null ? [point[0], point[1], 0] : point);
  }
  let line = "";
  let area = "";
  for (const run of runs.filter((each) => each.length)) {
    const drawn = run.map(at).map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`);
    line += `M${drawn.join("L")}`;
    area += `M${at(run[0])[0].toFixed(2)},29L${drawn.join("L")}L${at(run[run.length - 1])[0].toFixed(2)},29Z`;
  }
  svg.children[0].setAttribute("d", area);
  svg.children[1].setAttribute("d", line);
  svg.setAttribute("aria-label", `${describe(greatest)}, ${duration(Math.round(last - first))}`);
  return { greatest, seconds: Math.round(last - first) };
}

function figure(kind, title) {
  const svg = chart(kind);
  const [most, span] = [element("span"), element("span", { className: "dim" })];
  const made = element("figure", {}, element("figcaption", {}, element("span", { textContent: title }), most), svg, span);
  return { made, svg, most, span };
}

const CHARTS = [
  { kind: "depth", title: "Ready messages", place: 1, text: (most) => `max. ${number(most)}` },
  { kind: "age", title: "Age of oldest message", place: 2, text: (most) => `max. ${duration(most)}` },
];

function toggleCharts(row) {
  if (row.below) {
    row.below.remove();
    row.below = null;
    row.figures = null;
  } else {
    row.figures = CHARTS.map((each) => figure(each.kind, each.title));
    const cell = element("td", { colSpan: queues.columns.length, className: "plain" }, element("div", { className: "charts" }, ...row.figures.map((each) => each.made)));
    row.below = element("tr", { className: "charted" }, cell);
    row.tr.after(row.below);
    drawCharts(row);
  }
  row.button.setAttribute("aria-expanded", String(Boolean(row.below)));
}

function drawCharts(row) {
  const points = depths.get(row.entry.key) ?? [];
  row.figures?.forEach((each, place) => {
    const about = CHARTS[place];
    const drawn = draw(each.svg, points, about.place, (most) => `${about.title}: ${about.text(most)}`);
    setText(each.most, about.text(drawn.greatest));
    setText(each.span, `last ${duration(drawn.seconds)}`);
  });
}

const isOn = (row) => row.is_receive_enabled && row.is_enqueue_enabled;
const queues = new Table(document.querySelector("#queues .content"), [
  { name: "Queue", className: "name",
    build: (cell, row) => {
      row.button = element("button", { type: "button", className: "more" });
      row.button.setAttribute("aria-expanded", "false");
      row.button.addEventListener("click", () => toggleCharts(row));
      cell.append(row.button);
    },
    update: (cell, entry, row) => { setText(row.button, `${entry.row.database}: ${entry.row.queue}`); drawCharts(row); } },
  { name: "State", className: "state", update: (cell, { row }) => { setText(cell, isOn(row) ? "on" : "off"); cell.className = `state ${isOn(row) ? "" : "off"}`; } },
  { name: "Ready", className: "number", value: ({ row }) => number(row.ready) },
  { name: "History",
    build: (cell, row) => { row.spark = chart("depth"); cell.append(row.spark); },
    update: (cell, entry, row) => draw(row.spark, depths.get(entry.key) ?? [], 1, (most) => `Ready messages: max. ${number(most)}`) },
  { name: "Oldest age", value: ({ row }) => duration(row.oldest_seconds) },
  { name: "Waiting", className: "number", value: ({ row }) => number(row.waiting) },
  { name: "Leased", className: "number", value: ({ row }) => number(row.leased) },
  { name: "Incomplete", className: "number", value: ({ row }) => number(row.incomplete) },
  { name: "Retained", className: "number", value: ({ row }) => number(row.retained) },
  { name: "Failures", className: "reason", value: ({ row, moved }) => [row.problem ?? (isOn(row) ? "" : "disabled by a statement"), ...moved].filter(Boolean).join(" ") },
], "No queues");

const NO_STATUS = "Not sent, or not acknowledged yet";
const waiting = new Table(document.querySelector("#waiting .content"), [
  { name: "To", className: "name", value: ({ row }) => row.to_service_name },
  { name: "From database", className: "name", value: ({ row }) => row.database },
  { name: "Messages", className: "number", value: ({ row }) => number(row.messages) },
  { name: "Conversations", className: "number", value: ({ row }) => number(row.conversations) },
  { name: "Oldest age", value: ({ row }) => duration(row.oldest_seconds) },
  { name: "Status", className: "reason",
    build: (cell) => cell.append(element("p"), element("p", { className: "dim" })),
    update: (cell, { row }) => {
      setText(cell.children[0], row.transmission_status || NO_STATUS);
      setText(cell.children[1], row.cause ?? "");
    } },
  { name: "Explanation",
    build: (cell, row) => {
      row.button = element("button", { type: "button", textContent: "Explain" });
      row.button.addEventListener("click", () => explain(row.entry.row));
      cell.append(row.button);
    },
    update: (cell, { row }, { button }) => button.setAttribute("aria-label", `Explain why messages for ${row.to_service_name} are undelivered`) },
], "No undelivered messages");

let mostConversations = 1;
const conversations = new Table(document.querySelector("#conversations .content"), [
  { name: "Database", className: "name", value: ({ row }) => row.database },
  { name: "State", update: (cell, { row }) => { setText(cell, `${row.state} ${row.state_desc}`); cell.className = `state ${row.state === "ER" ? "error" : ""}`; } },
  { name: "Conversations", className: "number", value: ({ row }) => number(row.count) },
  { name: "Share", className: "bars",
    build: (cell) => cell.append(element("span", { className: "bar" })),
    update: (cell, { row }) => { cell.firstChild.style.width = `${Math.max(1, (100 * row.count) / mostConversations)}%`; } },
  { name: "Oldest age", value: ({ row }) => duration(row.oldest_seconds) },
], "No conversations");

const connections = new Table(document.querySelector("#connections .content"), [
  { name: "Instance", className: "name", value: ({ row }) => row.remote_user_name ?? "" },
  { name: "Principal", className: "name", value: ({ row }) => row.principal_name ?? "(none)" },
  { name: "Direction", value: ({ row }) => (row.is_accept ? "inbound" : "outbound") },
  { name: "State", className: "state", value: ({ row }) => row.state_desc + (row.is_receive_flow_controlled ? ", receiving paused" : "") + (row.is_send_flow_controlled ? ", sending paused" : "") },
  { name: "Connected", value: ({ row }) => timestamp(row.connect_time) },
  { name: "Sent", className: "number", value: ({ row }) => bytes(row.total_bytes_sent ?? 0) },
  { name: "Received", className: "number", value: ({ row }) => bytes(row.total_bytes_received ?? 0) },
], "No connections");

const forwarded = new Table(document.querySelector(".forwarded"), [
  { name: "Forwarded", className: "number", value: ({ row }) => `${number(row.messages)} (${bytes(row.bytes)})` },
  { name: "Per second", className: "number", value: ({ rate }) => number(rate) },
  { name: "Waiting", className: "number", value: ({ row }) => `${number(row.pending_messages)} (${bytes(row.pending_bytes)})` },
  { name: "Dropped", className: "number", value: ({ row }) => number(row.messages_discarded) },
], "No forwarded messages");

/* A time in the time zone of the browser, as 2026-11-21 14:03:12. */
const timestamp = (text) => (text ? new Date(text).toLocaleString("sv-SE") : "");

/* One state. */
let state = null;
let previous = null;
function showState() {
  if (!state) return;
  document.title = `${state.instance} · ssbroker`;
  setText(byId("instance"), state.instance);
  const serving = state.serving;
  const process = serving ? `Process ${serving.process} is listening on ${serving.listens}.` : "No process serves the instance.";
  setText(byId("serving"), `${process} Updated ${timestamp(state.at)}.`);
  showProblems();
  showTotals();
  showQueues();
  waiting.show(state.transmission_queue.map((row) => ({ row, key: JSON.stringify([row.database, row.to_service_name, row.transmission_status]) })), state.omitted.transmission_queue);
  mostConversations = Math.max(1, ...state.conversations.map((row) => row.count));
  conversations.show(state.conversations.map((row) => ({ row, key: JSON.stringify([row.database, row.state]) })), state.omitted.conversations);
  connections.show((serving?.connections ?? []).map((row) => ({ row, key: row.connection_id })), state.omitted.connections);
  const seconds = previous ? (new Date(state.at) - new Date(previous.at)) / 1000 : 0;
  const rate = seconds > 0 && previous.forwarding && state.forwarding ? Math.round((state.forwarding.messages - previous.forwarding.messages) / seconds) : 0;
  forwarded.show(state.forwarding?.messages || state.forwarding?.pending_messages || state.forwarding?.messages_discarded ? [{ row: state.forwarding, rate, key: "all" }] : []);
}

function showProblems() {
  const texts = Object.entries(state.problems).map(([subject, text]) => `${capitalized(subject)}: ${text}`);
  for (const row of state.databases) {
    if (row.problem && !(`database ${row.name}` in state.problems)) texts.push(`Database ${row.name}: ${row.problem}`);
    else if (!row.problem && !row.is_broker_enabled) texts.push(`Database ${row.name}: broker disabled`);
  }
  const list = byId("problems");
  if ([...list.children].map((each) => each.textContent).join("\n") !== safe(texts.join("\n"))) {
    list.replaceChildren(...texts.map((text) => element("li", { textContent: safe(text) })));
  }
  list.hidden = texts.length === 0;
}

function showTotals() {
  const { ready, undelivered, conversations: open, connections: connected, leased_groups: leased, disabled_queues: disabled } = state.totals;
  const totals = [
    [ready, "ready message", ""],
    [undelivered, "undelivered message", undelivered ? "warning" : "fine"],
    [open, "conversation", ""],
    [connected, "connection", ""],
    [leased, "leased conversation group", ""],
    [disabled, "disabled queue", disabled ? "error" : "fine"],
  ];
  const list = byId("totals");
  while (list.children.length < totals.length) list.append(element("li", {}, element("b"), element("span")));
  totals.forEach(([value, noun, style], place) => {
    const entry = list.children[place];
    entry.className = style;
    setText(entry.children[0], number(value));
    setText(entry.children[1], value === 1 ? noun : `${noun}s`);
  });
}

function showQueues() {
  const wanted = byId("filter").value.toLowerCase();
  const isBusy = (row) => row.ready > 0 || row.waiting > 0 || row.leased > 0 || row.incomplete > 0 || !isOn(row);
  const name = (row) => `${row.database}: ${row.queue}`;
  const rows = state.queues.filter((row) => name(row).toLowerCase().includes(wanted));
  rows.sort((one, other) => isBusy(other) - isBusy(one) || name(one).localeCompare(name(other)));
  queues.show(rows.map((row) => ({ row, key: keyOf(row), className: isOn(row) ? "" : "off", moved: movedFrom(row) })), state.omitted.queues);
}

/* Messages of a queue that failed and were moved to another queue. */
function movedFrom(row) {
  return state.moved.filter((each) => keyOf(each) === keyOf(row)).map((each) =>
    `${plural(each.groups, "conversation group")} moved to ${each.moved_to}; last failure ${each.last_failed_at.slice(0, 19)} UTC: ${each.error}`);
}
byId("filter").addEventListener("input", () => { if (state) showQueues(); });

function remember(found) {
  const at = new Date(found.at) / 1000;
  for (const row of found.queues) {
    const key = keyOf(row);
    if (!depths.has(key)) depths.set(key, []);
    const points = depths.get(key);
    if (points.length && points[points.length - 1][0] >= at - 0.05 && points[points.length - 1][1] !== null) continue;
    points.push([at, row.ready, row.oldest_seconds]);
    if (points.length > POINTS_MAX) points.shift();
  }
}

/* Events, the latest first. */
const EVENTS_MAX = 200;
let run = null;
let latestEvent = 0;
function showEvents(events) {
  const list = document.querySelector("#events ol");
  const made = events.filter((each) => each.number > latestEvent).map((each) => element("li", { className: each.level },
    element("span", { className: "dim", textContent: timestamp(each.at) }), element("b", { textContent: each.name }),
    element("span", { className: "name", textContent: safe(`${each.database ? `${each.database}: ` : ""}${each.text}`) })));
  const omitted = latestEvent && events.length ? events[0].number - latestEvent - 1 : 0;
  if (omitted > 0) list.prepend(element("li", { className: "dim", textContent: `${plural(omitted, "event")} skipped (too many at once)` }));
  if (events.length) latestEvent = Math.max(latestEvent, events[events.length - 1].number);
  list.prepend(...made.reverse());
  while (list.children.length > EVENTS_MAX) list.lastChild.remove();
  byId("no-events").hidden = list.children.length > 0;
}

/* Explains why the messages of a row are undelivered. The server compares this many characters of the status. */
const STATUS_MAX = 1000;
async function explain(row) {
  const content = document.querySelector("#explanation .content");
  setText(byId("explained"), `Why messages for ${row.to_service_name} are undelivered`);
  content.replaceChildren(nothing("Loading…"));
  byId("explanation").showModal();
  const status = row.transmission_status.slice(0, STATUS_MAX);
  const question = new URLSearchParams({ database: row.database, service: row.to_service_name, status });
  try {
    const response = await ask(`explain?${question}`);
    if (!response.ok) { content.replaceChildren(nothing((await response.text()).trim())); return; }
    const found = await response.json();
    const parts = [element("p", { textContent: safe(`Oldest message: number ${found.message_sequence_number} of conversation ${found.conversation_id}, from ${found.from_service_name} in ${found.database}.`) }),
      element("h3", { textContent: "Status" }), element("p", { textContent: safe(found.transmission_status) || NO_STATUS })];
    if (found.cause) parts.push(element("p", { textContent: `Likely cause: ${found.cause}.` }));
    if (found.remedy) parts.push(element("h3", { textContent: "What to do" }), element("p", { textContent: found.remedy }));
    const steps = element("pre", { textContent: found.explanation, className: "steps", tabIndex: 0 });
    steps.setAttribute("aria-label", "Current routing of this conversation");
    parts.push(element("h3", { textContent: "Current routing of this conversation" }), steps);
    content.replaceChildren(...parts);
  } catch (error) {
    content.replaceChildren(nothing(`No response from the server: ${error.message}`));
  }
}
document.querySelector("#explanation .close").addEventListener("click", () => byId("explanation").close());

/* The stream. The token comes from the form or from the part of the address after #, which is never sent. */
const TOKEN = "ssbroker-token";
const HIDDEN_MILLISECONDS = 60000;
let stopper = null;
let retry = 0;
let attempt = 0;
let isPaused = false;
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(TOKEN, given);
  window.history.replaceState(null, "", location.pathname);
}

function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return fetch(path, { cache: "no-store", credentials: "omit", headers: token ? { Authorization: `Bearer ${token}` } : {}, ...options });
}

function setLink(text, style = "") {
  setText(byId("link"), text);
  byId("link").className = `link ${style}`;
}

function receive(name, data) {
  if (name === "history") {
    const isSameRun = data.run === run;
    if (!isSameRun) {
      for (const points of depths.values()) points.push([points[points.length - 1][0], null, null]); // while no server ran
      [run, latestEvent, state] = [data.run, 0, null]; // the server counts its events and forwarded messages from the start
    }
    for (const [database, queue, points] of data.queues) {
      const key = keyOf({ database, queue });
      const known = isSameRun ? [] : depths.get(key) ?? []; // the history of the same server is complete, with its gaps
      depths.set(key, [...known, ...points].slice(-POINTS_MAX));
    }
  } else if (name === "state") {
    previous = state;
    state = data;
    remember(data);
    setLink(isPaused ? "Paused" : "Live", isPaused ? "" : "live");
    if (!isPaused) showState();
  } else if (name === "log") {
    showEvents(data);
  } else if (name === "failure") {
    setLink(`Cannot read the state: ${data}`, "lost");
  }
}

function receiveText(text) {
  let name = "";
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (name) receive(name, JSON.parse(data));
}

async function stream() {
  stopper = new AbortController();
  const { signal } = stopper;
  try {
    const response = await ask("events", { signal });
    if (response.status === 401) { askForToken(); return; }
    if (!response.ok) throw new Error((await response.text()).trim());
    byId("login").hidden = true;
    attempt = 0;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      buffer += value;
      const parts = buffer.split("\n\n");
      buffer = parts.pop();
      parts.forEach(receiveText);
    }
    throw new Error("stream closed by the server");
  } catch (error) {
    if (signal.aborted) return;
    attempt += 1;
    setLink(`Disconnected (${error.message}). Reconnecting…`, "lost");
    retry = setTimeout(stream, Math.min(10000, 500 * 2 ** attempt));
  }
}

function stop() {
  clearTimeout(retry);
  stopper?.abort();
  stopper = null;
}

function askForToken() {
  const hadToken = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  setLink("Token required");
  setText(byId("refused"), hadToken ? "Invalid token" : "");
  byId("login").hidden = false;
  byId("token").focus();
}
document.querySelector("#login form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  stream();
});

byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  setText(byId("pause"), isPaused ? "Resume" : "Pause");
  setLink(isPaused ? "Paused" : "Live", isPaused ? "" : "live");
  if (!isPaused) showState();
});

/* Closes the stream while the tab is hidden. */
let timer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) {
    timer = setTimeout(() => { stop(); setLink("Paused while hidden"); }, HIDDEN_MILLISECONDS);
  } else if (stopper === null) {
    stream();
  }
});
stream();
