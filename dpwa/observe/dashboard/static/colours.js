// The colours of the style sheet, for drawing on a canvas.

const NEXT = { system: "light", light: "dark", dark: "system" };
const PALETTE = 7; // colours that nearly all people can distinguish

let known = new Map();

/** Return a colour by its name in the style sheet. */
export function colour(name) {
  if (!known.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return known.get(name);
}

/** Return the colour and the dashes for the line of the node with this index. */
export function look(index) {
  return { stroke: colour(`line-${index % PALETTE}`), dash: index < PALETTE ? [] : [6, 4] };
}

/** Let a button change the theme. `changed` is called after the colours have changed. */
export function followTheme(button, changed) {
  const theme = window.dpwaTheme;
  const tell = () => {
    known = new Map();
    button.textContent = `Theme: ${theme.choice}`;
    changed();
  };
  theme.follow(tell);
  button.addEventListener("click", () => theme.choose(NEXT[theme.choice]));
  tell();
}
