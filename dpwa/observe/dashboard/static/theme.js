// Before anything is drawn: the theme that was chosen last, so that nothing flashes.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("dpwa.theme");
  } catch {
    // A browser that keeps nothing: the system's theme it is.
  }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}
