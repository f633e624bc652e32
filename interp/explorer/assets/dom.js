// The page's elements. All text goes in as text: no function here reads HTML.
const byId = (id) => document.getElementById(id);

function make(tag, { text, title, className, ...rest } = {}, children = []) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (title !== undefined) element.title = title;
  if (className) element.className = className;
  for (const [name, value] of Object.entries(rest)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function fill(element, children) {
  element.replaceChildren(...children);
}

function option(value, text) {
  return make("option", { value: String(value), text });
}
