// Elements and texts. Whatever users wrote goes through text nodes and attributes only, never through HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. Properties that begin with "on" are listeners; false, null and undefined are left out. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Return an element of SVG. */
export function s(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

const drawn = new WeakMap();

/** Fill a container with what `build` returns for the data, if the data differ from those that it shows. */
export function show(container, data, build) {
  const now = JSON.stringify(data);
  if (drawn.get(container) === now) return false;
  const focused = document.activeElement;
  const key = container.contains(focused) ? focused.dataset.key : undefined;
  container.replaceChildren(...[build(data)].flat(Infinity).filter(Boolean));
  drawn.set(container, now);
  // The one that had the focus was replaced by its successor: a keyboard user stays where they were.
  if (key) [...container.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus();
  return true;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** Return a measured value in few digits; a dash for one that is unknown. */
export function measured(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const text = value !== 0 && Math.abs(value) < 0.01 ? "<0.01" : short.format(value);
  return unit ? `${text} ${unit}` : text;
}

export const timeOf = (ms) => clock.format(new Date(ms));
export const dateOf = (ms) => (ms ? day.format(new Date(ms)) : "–");

/** Return a moment as an element: the time of day if it is of today, the date otherwise. */
export function moment(ms) {
  if (!ms) return "–";
  const isToday = new Date(ms).toDateString() === new Date().toDateString();
  return h("time", { datetime: new Date(ms).toISOString(), title: dateOf(ms) }, isToday ? timeOf(ms) : dateOf(ms));
}

export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const empty = (text) => h("p", { class: "empty" }, text);
export const notice = (text, kind = "") => h("p", { class: `notice ${kind}` }, text);

/** Return a table in a frame. A column is [title, cell of a row, class]; phones show each row as a card. */
export function table(columns, rows, caption) {
  const head = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) =>
    h("tr", {}, columns.map(([title, cell, kind]) => h("td", { class: kind, "data-label": title }, cell(row)))),
  );
  return h("div", { class: "frame" },
    h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Return a form in one row; `send` gets its values by name. */
export function bar(fields, label, send) {
  const submitted = (event) => {
    event.preventDefault();
    send(Object.fromEntries(new FormData(event.currentTarget)));
  };
  return h("form", { class: "bar", onsubmit: submitted }, fields, h("button", { class: "strong" }, label));
}

export const field = (label, input) => h("label", {}, label, input);

/** Ask before something is done. `work` runs when the person agrees; what it raises is shown in the dialog. */
export function ask(title, text, verb, work, input = null) {
  const dialog = document.getElementById("dialog");
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const agree = h("button", { type: "submit", class: "strong" }, verb);
  const send = async (event) => {
    event.preventDefault();
    agree.disabled = true;
    try {
      await work(input?.value);
      dialog.close();
    } catch (error) {
      trouble.textContent = error.message;
      trouble.hidden = false;
      agree.disabled = false;
    }
  };
  dialog.replaceChildren(
    h("form", { onsubmit: send }, h("h2", { id: "dialog-title" }, title), h("p", {}, text), input, trouble,
      h("div", { class: "bar" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), agree)));
  dialog.showModal();
}
