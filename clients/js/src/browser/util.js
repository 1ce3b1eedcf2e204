// The functions of Node's `util` that avsc uses, for browsers.

export function inherits(child, parent) {
  Object.setPrototypeOf(child.prototype, parent.prototype);
  Object.setPrototypeOf(child, parent);
}

export function format(template, ...values) {
  const shown = (each, form) => (form === "%j" ? JSON.stringify(each) : String(each));
  return String(template).replace(/%[sdj]/g, (form) => (values.length > 0 ? shown(values.shift(), form) : form));
}

export function deprecate(act) {
  return act;
}

export function debuglog() {
  return () => {};
}
