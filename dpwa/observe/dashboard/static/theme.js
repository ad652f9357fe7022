// Before anything is drawn: the theme that was chosen last, or else the system's, so that nothing flashes.
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
    /** What was chosen: "system", "light" or "dark". */
    get choice() {
      return choice;
    },
    /** Choose one of them, and remember that. */
    choose(theme) {
      choice = theme;
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // Not remembered, then.
      }
      show();
    },
    /** Have a function called whenever the colours are others. */
    follow(call) {
      changed = call;
    },
  };

  try {
    const last = localStorage.getItem(KEY);
    if (last === "dark" || last === "light") choice = last;
  } catch {
    // A browser that keeps nothing: the system's theme it is.
  }
  systemDark.addEventListener("change", show);
  show();
}
