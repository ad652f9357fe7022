// Sets the theme that the user chose last, or else the theme of the system, before the page is drawn.
"use strict";
{
  const KEY = "dpwa.theme";
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  let changed = () => {};

  const show = () => {
    const ofSystem = systemDark.matches ? "dark" : "light";
    root.dataset.theme = choice === "system" ? ofSystem : choice;
    changed();
  };

  window.dpwaTheme = {
    /** The chosen theme: "system", "light" or "dark". */
    get choice() {
      return choice;
    },
    /** Choose a theme, and remember the choice. */
    choose(theme) {
      choice = theme;
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // The browser stores nothing, so the choice is not remembered.
      }
      show();
    },
    /** Call this function after each change of the colours. */
    follow(call) {
      changed = call;
    },
  };

  try {
    const last = localStorage.getItem(KEY);
    if (last === "dark" || last === "light") choice = last;
  } catch {
    // The browser stores nothing, so the page uses the theme of the system.
  }
  systemDark.addEventListener("change", show);
  show();
}
