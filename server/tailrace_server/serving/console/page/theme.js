// Sets the theme before the first paint: the one that was chosen, or the system's.

document.documentElement.dataset.theme = localStorage.getItem("tailrace.theme")
  ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
