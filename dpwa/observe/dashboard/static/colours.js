// The colours of the style sheet, for what is drawn on a canvas.

const NEXT = { system: "light", light: "dark", dark: "system" };
const WORDS = { system: "as the system", light: "light", dark: "dark" };
const PALETTE = 7; // colours that can be told apart, by nearly everybody

let known = new Map();

/** Return a colour by its name in the style sheet. */
export function colour(name) {
  if (!known.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return known.get(name);
}

/** How the line of the node at this place is drawn, where each has a look of its own. */
export function look(index) {
  return { stroke: colour(`line-${index % PALETTE}`), dash: index < PALETTE ? [] : [6, 4] };
}

/** Let a button change the theme; `changed` is called when the colours are others. */
export function followTheme(button, changed) {
  const theme = window.dpwaTheme;
  const tell = () => {
    known = new Map();
    button.textContent = `Theme: ${WORDS[theme.choice]}`;
    changed();
  };
  theme.follow(tell);
  button.addEventListener("click", () => theme.choose(NEXT[theme.choice]));
  tell();
}
